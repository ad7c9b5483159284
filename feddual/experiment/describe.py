"""Experiments and algorithms in words: commented YAML, tables of parameters. Imports no TensorFlow."""

import importlib
import inspect
from typing import Any

from pydantic import AfterValidator, BaseModel

from feddual.experiment import plugins
from feddual.experiment.config import VARIANTS, Experiment, section_class


def commented_yaml(experiment: Experiment) -> str:
    """A resolved experiment as YAML, each key with what it means and what it may be."""
    lines = ["# A feddual experiment. Run it with: feddual run THIS_FILE.yaml"]
    values = experiment.to_dict()
    for key, value in values.items():
        field = Experiment.model_fields[key]
        if isinstance(value, dict):
            cls: Any = section_class(key, value) if key in VARIANTS else field.annotation
            doc = (inspect.getdoc(cls) or "").splitlines()
            lines += ["", f"{key}:" + (f"  # {doc[0]}" if doc else "")]
            lines += _lines(cls, value, getattr(experiment, key), "  ")
        else:
            lines.append(_line(f"{key}: {_yaml(value)}", _note(Experiment, key)))
    return "\n".join(lines) + "\n"


def _lines(cls: type[BaseModel], values: dict[str, Any], section: BaseModel, indent: str) -> list[str]:
    """The keys of a section; those of one within it stand below its own."""
    lines = []
    for name, value in values.items():
        inner = getattr(section, name, None)
        if isinstance(inner, BaseModel):
            lines.append(_line(f"{indent}{name}:", _note(cls, name)))
            lines += _lines(type(inner), value, inner, indent + "  ")
        else:
            lines.append(_line(f"{indent}{name}: {_yaml(value)}", _note(cls, name)))
    return lines


def _line(text: str, note: str) -> str:
    return f"{text:<40}  # {note}" if note else text


def _note(cls: type[BaseModel], name: str) -> str:
    field = cls.model_fields.get(name)
    if field is None:
        return ""
    parts = [field.description] if field.description else []
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    said = ((getattr(item, key, None), sign) for item in field.metadata for key, sign in signs.items())
    bounds = [f"{sign} {bound}" for bound, sign in said if bound is not None]
    if bounds:
        parts.append(" and ".join(bounds))
    options = getattr(field.annotation, "__args__", ())
    for item in field.metadata:
        if isinstance(item, AfterValidator):  # a name that is looked up
            options = plugins.names(getattr(item.func, "args", ("",))[0])
    if name != "name" and options and all(isinstance(option, str) for option in options):
        parts.append(" | ".join(options))
    return "; ".join(parts)


def _yaml(value: Any) -> str:
    import yaml

    return yaml.safe_dump(value, default_flow_style=True).strip().removesuffix("\n...").strip()


def algorithms() -> list[dict[str, Any]]:
    """A row for each algorithm."""
    return [algorithm(name) for name in plugins.names("algorithms")]


def algorithm(name: str) -> dict[str, Any]:
    """What there is to know of an algorithm."""
    cls = plugins.find("algorithms", name, "algorithm.name")
    doc = inspect.getdoc(importlib.import_module(cls.__module__)) or ""
    title = doc.splitlines()[0] if doc else ""
    fields = {key: field.default for key, field in cls.Params.model_fields.items()}
    return {
        "name": name,
        "paper": title,
        "doc": doc,
        "parameters": {key: {"default": default, "meaning": _note(cls.Params, key)} for key, default in fields.items()},
        "parameters_text": ", ".join(f"{key} ({default})" for key, default in fields.items()),
        "presets": cls.presets,
        "communication": cls.communication_text,
        "memory": cls.memory_text,
    }


def algorithm_text(facts: dict[str, Any]) -> str:
    """One algorithm in full."""
    lines = [facts["name"], "", facts["doc"], "", f"Communication, down / up: {facts['communication']}"]
    lines.append(f"Kept between rounds: {facts['memory']}")
    if facts["parameters"]:
        lines += ["", "Parameters (--set algorithm.KEY=VALUE):"]
        lines += [f"  {key} = {value['default']}  {value['meaning']}" for key, value in facts["parameters"].items()]
    if facts["presets"]:
        lines += ["", f"Presets (--set algorithm.preset=NAME): {', '.join(facts['presets'])}"]
    return "\n".join(lines)
