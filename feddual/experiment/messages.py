"""What is wrong with an experiment, in words: the path, the value and what is allowed."""

import re
from collections.abc import Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from feddual.experiment import plugins

# The branches of a union ("int", "constrained-int", "literal['all']") are no keys of the user's.
_BRANCH = re.compile(r"literal\[|constrained-|int$|float$")


def readable(error: ValidationError, cls: type[BaseModel], prefix: str = "") -> list[str]:
    """A line for each problem."""
    lines = []
    for item in error.errors():
        keys, inside = _keys(cls, [part for part in map(str, item["loc"]) if not _BRANCH.match(part)])
        path = ".".join([prefix, *keys] if prefix else keys)
        if item["type"] == "extra_forbidden":
            lines.append(f"{path}: {unknown(keys[-1], sorted(inside.model_fields) if inside else [])}")
        elif item["type"].startswith("union_tag") and inside:  # the name of a section that comes in variants
            name = item["input"].get("name")
            said = "is required" if name is None else f"{name!r} is unknown"
            lines.append(f"{path}.name: {said}; {plugins.allowed(name or '', _variants(inside, keys[-1]))}")
        elif item["type"] == "value_error":  # what `plugins` says of a name
            lines.append(f"{path}: {item['ctx']['error']}")
        elif item["type"] == "missing":
            lines.append(f"{path}: is required")
        else:
            message = re.sub(r"^Input should be", "it should be", item["msg"])
            lines.append(f"{path}: {item['input']!r} is not allowed; {message}")
    return lines


def unknown(key: str, allowed: Sequence[str]) -> str:
    """What is said of a key that does not exist."""
    return f"unknown key; {plugins.allowed(key, allowed)}" if allowed else "unknown key"


def _keys(cls: type[BaseModel], location: Sequence[str]) -> tuple[list[str], type[BaseModel] | None]:
    """The user's keys in a location, without names of variants, and the section that has the last of them."""
    keys: list[str] = []
    here: type[BaseModel] | None = cls
    inside, variants = here, dict[str, type[BaseModel]]()
    for part in location:
        if part in variants:
            here, variants = variants[part], {}
            continue
        keys.append(part)
        inside, variants = here, _variants(here, part)
        annotation = here.model_fields[part].annotation if here and part in here.model_fields else None
        here = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return keys, inside


def _variants(cls: type[BaseModel] | None, key: str) -> dict[str, type[BaseModel]]:
    """The sections that a key may hold, by name; none where there is no choice."""
    field = cls.model_fields.get(key) if cls else None
    if field is None or field.discriminator is None:
        return {}
    names: Any = ((name, one) for one in get_args(field.annotation) for name in _names(one))
    return dict(names)


def _names(section: type[BaseModel]) -> tuple[str, ...]:
    return get_args(section.model_fields["name"].annotation)
