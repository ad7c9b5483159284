"""An experiment: YAML in, a validated and fully resolved `Experiment` out.

Precedence, strongest first: overrides (`--set a.b=c`), the experiment file, `algorithm.preset`, `protocol`, defaults.
`dataset`, `partition`, `model` and `algorithm` come in variants chosen by `name`, which `plugins` finds: their keys are
the parameters of the function or class of that name, also of a user's own. When an override picks another variant, keys
of the file that it lacks are dropped.
"""

import copy
import inspect
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, create_model

from feddual.errors import UserError
from feddual.experiment import messages, plugins
from feddual.experiment.schema import ExecutorName, Preprocess, Section, ServerNone, ServerOptimizer, SinkName

Source = Union[str, Path, Mapping[str, Any], "Experiment"]

_HELD_OUT = (
    "share of the training data that is kept from the clients and tested on instead of the test set, which stays "
    "unopened: for choosing settings"
)


_SERVER = (
    "what becomes of the aggregated model: none, momentum (learning_rate, momentum), ema (decay), fedadam or fedyogi "
    "(learning_rate, beta1, beta2, tau)"
)


class Training(Section):
    """How the federation trains. Optimizer, learning rate and weighting come from the protocol unless given."""

    rounds: int = Field(20, ge=1, description="communication rounds")
    clients_per_round: int = Field(10, ge=1, description="clients sampled each round, without replacement")
    local_epochs: int = Field(3, ge=0, description="passes of a client over its data each round")
    batch_size: int = Field(32, ge=1, description="the last, shorter batch is trained on too")
    optimizer: Literal["adam", "sgd"] = Field("adam", description="of the clients; its state starts fresh each round")
    learning_rate: float = Field(1e-3, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1, description="for sgd")
    weight_decay: float = Field(0.0, ge=0, description="added to the gradient, times the weights")
    clip_norm: float | None = Field(None, gt=0, description="largest norm of a step's whole gradient")
    weighting: Literal["uniform", "num_examples"] = Field("uniform", description="of the clients in the average")
    server: ServerOptimizer = Field(ServerNone(), discriminator="name", description=_SERVER)


class Evaluation(Section):
    """The server's test of the global model."""

    every: int = Field(1, ge=1, description="rounds between tests; the last round is always tested")
    batch_size: int = Field(100, ge=1, description="changes the speed only")
    held_out: float = Field(0.0, ge=0, le=0.5, description=_HELD_OUT)
    metrics: Literal["standard", "all"] = Field(
        "standard", description="all: also the public FedDUAL code's averages, as weighted_f1, g_mean_one_vs_rest, ..."
    )


class ProbeEntry(BaseModel):
    """A measurement during training: its name, a schedule, and parameters of its own."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, allow_inf_nan=False)
    name: str = Field(description="gradient-norms, ... or package.module:Class")


class CheckpointPolicy(Section):
    """When the state is saved; always after the last round."""

    every: int = Field(10, ge=1, description="rounds between checkpoints")
    keep: Annotated[int, Field(ge=1)] | Literal["all"] = Field(2, description="how many of them stay, or 'all'")
    rounds: list[Annotated[int, Field(ge=0)]] = Field([], description="rounds whose checkpoint is made and stays")


class Runtime(Section):
    """Where and how fast it runs; never what comes out."""

    executor: ExecutorName = Field("inline", description="who runs the clients")
    workers: int = Field(1, ge=1, description="worker processes, for executors that have them")
    threads: int = Field(1, ge=1, description="TensorFlow threads in each process; one gives the same bits everywhere")
    device: str = Field("auto", pattern=r"^(auto|cpu|gpu|(GPU|CPU):\d+)$", description="auto, cpu, gpu or GPU:1")
    jit: Literal["auto"] | bool = Field("auto", description="compile local epochs with XLA; auto: on a GPU")
    accelerate: bool = Field(True, description="exact rewrites of the first layer; off, the plain Keras layers run")
    cache_features: bool = Field(True, description="run a frozen prefix once per image and keep its output on disk")
    data_dir: str | None = Field(None, description="folder with data sets and pretrained weights, searched first")


class Experiment(Section):
    """Everything a run depends on."""

    name: str = Field("experiment", pattern=r"^[\w][\w.+-]*$", description="also the run directory's default name")
    seed: int = Field(0, ge=0, description="drives initialisation, client sampling and batches")
    dataset: SerializeAsAny[BaseModel]
    partition: SerializeAsAny[BaseModel]
    model: SerializeAsAny[BaseModel]
    protocol: Literal["paper", "faithful"] = Field(
        "paper", description="paper: Adam and uniform weights; faithful: each algorithm's own optimizer and weights"
    )
    algorithm: SerializeAsAny[BaseModel]
    training: Training = Training()
    evaluation: Evaluation = Evaluation()
    probes: list[ProbeEntry] = Field([], description="measurements during training")
    sinks: list[SinkName] = Field([], description="where rounds are reported as well")
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    runtime: Runtime = Runtime()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, every default filled in."""
        return self.model_dump(mode="json")

    def to_yaml(self) -> str:
        """The experiment as an experiment file."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, width=100)

    def to_json(self) -> str:
        """The experiment as JSON, keys sorted: equal experiments are equal texts."""
        return json.dumps(self.to_dict(), sort_keys=True)


# --- variants -------------------------------------------------------------------------------------------------------


VARIANTS = {"dataset": "datasets", "partition": "partitions", "model": "models", "algorithm": "algorithms"}
_EXAMPLES = {"dataset": "fmnist", "partition": "published", "model": "lenet5", "algorithm": "fedavg"}
# What the engine itself hands to a function, first by position: no keys of the section.
_GIVEN = {"dataset": 0, "partition": 1, "model": 2}
_NO_KEYS = ("data_dir", "with_test")


# The classes below are kept by the function or class they come from, not by its name: what was edited and run again in
# a notebook, or reloaded, is another one.
@lru_cache(maxsize=256)
def _from_signature(section: str, name: str, function: Any) -> type[Section]:
    """A section whose keys are the keyword parameters of a function."""
    fields: dict[str, Any] = {"name": (Literal[name], name)}
    if section == "dataset":
        fields["preprocess"] = (Preprocess, "auto")
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    for parameter in parameters[_GIVEN[section] :]:
        if parameter.name not in _NO_KEYS and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            default = ... if parameter.default is parameter.empty else parameter.default
            fields[parameter.name] = (Any if parameter.annotation is parameter.empty else parameter.annotation, default)
    if section == "partition" and "num_clients" not in fields:
        raise UserError(f"partition.name: {name!r} lacks the parameter num_clients, which every partition has")
    extra = "allow" if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters) else "forbid"
    base = create_model("Section", __base__=Section, __cls_kwargs__={"extra": extra, "arbitrary_types_allowed": True})
    return create_model(name, __base__=base, __doc__=inspect.getdoc(function), **fields)


@lru_cache(maxsize=256)
def _from_params(params: type[BaseModel], name: str) -> type[BaseModel]:
    fields: dict[str, Any] = {"name": (Literal[name], name), "preset": (str | None, None)}
    return create_model(params.__name__, __base__=params, **fields)


def found_by(values: Mapping[str, Any]) -> tuple[Any, ...]:
    """The functions and classes that an experiment's names stand for now: a cache must not outlive them."""
    named = [section for section in VARIANTS if "path" not in values[section]]
    return tuple(plugins.find(VARIANTS[key], values[key]["name"], f"{key}.name") for key in named)


def section_class(section: str, values: Mapping[str, Any]) -> type[BaseModel]:
    """The class that validates a section with these values: that of its variant."""
    if section == "dataset" and "path" in values:
        return _from_signature(section, "file", plugins.load_attribute("feddual.data.datasets:from_file", section))
    name = values.get("name")
    if not isinstance(name, str):
        raise UserError(f"{section}.name: {name!r} is not a name; for example {_EXAMPLES[section]}")
    found = plugins.find(VARIANTS[section], name, f"{section}.name")
    return _from_params(found.Params, name) if section == "algorithm" else _from_signature(section, name, found)


# --- resolving ------------------------------------------------------------------------------------------------------


def preset_names() -> list[str]:
    """The shipped experiments."""
    return list(plugins.shelf("experiments"))


def resolve(source: Source, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """An experiment from a preset's name, a YAML file, a mapping or another experiment.

    Args:
        source: For instance `"paper-fmnist"`, `"mine.yaml"` or `{"dataset": {"name": "fmnist-mini"}, ...}`.
        overrides: Dotted keys to values, such as `{"training.rounds": 5}`; they win over everything.

    Returns:
        The experiment, every setting with its value.

    Raises:
        UserError: With one line per problem: the path, the value and what is allowed.

    Example:
        >>> import feddual
        >>> experiment = feddual.resolve("quickstart", {"algorithm.name": "fedprox", "training.rounds": 5})
        >>> experiment.training.rounds, experiment.algorithm.proximal_weight
        (5, 0.1)
    """
    file = load(source)
    override = nest(overrides or {})
    given = {**file, **override}
    known = sorted(Experiment.model_fields)
    problems = [f"{key}: {messages.unknown(key, known)}" for key in given if key not in known]
    for key, value in given.items():
        if key in _EXAMPLES and not isinstance(value, Mapping):
            problems.append(f"{key}: {value!r} is not a mapping; for example {{name: {_EXAMPLES[key]}}}")
    if problems:
        raise UserError("\n".join(problems))

    for section in _EXAMPLES:
        file[section] = _keys_of_variant(section, file.get(section, {}), override.get(section, {}))
    given = _with_one_server(file, override)

    section_class("algorithm", given["algorithm"])  # a name, and a known one
    algorithm = plugins.find("algorithms", given["algorithm"]["name"])
    defaults = algorithm.protocol_defaults(given.get("protocol", "paper"))
    preset = given["algorithm"].get("preset") or algorithm.default_preset
    preset = algorithm.former_presets.get(preset, preset)
    if preset is not None:
        if preset not in algorithm.presets:
            said = f"algorithm.preset: {preset!r} is unknown to {given['algorithm']['name']}"
            raise UserError(f"{said}; {plugins.allowed(preset, sorted(algorithm.presets))}")
        defaults = merge(defaults, {"algorithm": algorithm.presets[preset]})
        given = merge(given, {"algorithm": {"preset": preset}})
    return _validate(_with_one_server(defaults, given))


def load(source: Source) -> dict[str, Any]:
    """The mapping behind a source, as it was written."""
    if isinstance(source, Experiment):
        return source.to_dict()
    if isinstance(source, Mapping):
        return copy.deepcopy(dict(source))
    return read_shipped("experiment", source, "experiments", " (feddual init > mine.yaml makes one)")


def read_shipped(what: str, source: str | Path, shelf: str, advice: str = "") -> dict[str, Any]:
    """The mapping in a shipped file, by its name, or in a user's YAML file; `what` and `advice` are for messages."""
    shipped = plugins.shelf(shelf)
    path = shipped.get(str(source), Path(source))
    if path.suffix not in (".yaml", ".yml"):
        allowed = plugins.allowed(str(source), shipped)
        raise UserError(f"{what} {str(source)!r} is unknown; {allowed}, or a .yaml file{advice}")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except OSError as error:
        raise UserError(f"{what} file {path}: {error.strerror or error}") from error
    except yaml.YAMLError as error:
        raise UserError(f"{source} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{source}: expected a mapping of keys to values, got {values!r}")
    return values


def parse_overrides(texts: Sequence[str]) -> dict[str, Any]:
    """`["training.rounds=5"]` to `{"training.rounds": 5}`; values are read as YAML."""
    overrides = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UserError(f"--set {text!r}: expected key=value, for example --set training.rounds=20")
        try:
            overrides[key.strip()] = yaml.load(value, _Loader)
        except yaml.YAMLError as error:
            raise UserError(f"--set {text!r}: {value!r} is not a YAML value") from error
    return overrides


def nest(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` to `{"a": {"b": 1}}`."""
    nested: dict[str, Any] = {}
    for key, value in dotted.items():
        *parents, last = key.split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise UserError(f"{key}: {parent} is given as a value and as a section")
        if isinstance(value, Mapping) and isinstance(place.get(last), dict):
            value = merge(place[last], value)
        place[last] = copy.deepcopy(dict(value)) if isinstance(value, Mapping) else value
    return nested


def merge(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings, the second one winning."""
    merged = dict(weak)
    for key, value in strong.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def _with_one_server(weak: Mapping[str, Any], strong: Mapping[str, Any]) -> dict[str, Any]:
    """Merged; a server optimizer of another name takes no keys of the weaker one."""
    known, chosen = (_mapping(_mapping(part.get("training")).get("server")) for part in (weak, strong))
    if chosen.get("name", known.get("name")) != known.get("name"):
        weak = merge(weak, {"training": {"server": None}})
    return merge(weak, strong)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # what is none is told when it is validated


def _keys_of_variant(section: str, file: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """The file's keys, without those that a variant picked by an override lacks."""
    picks_path = section == "dataset" and "path" in override
    if not picks_path and override.get("name", file.get("name")) == file.get("name"):
        return dict(file)
    fields = section_class(section, override).model_fields
    return {key: value for key, value in file.items() if key in fields and key not in ("name", "preset")}


def _validate(values: dict[str, Any]) -> Experiment:
    problems: list[str] = []
    parsed = dict(values)
    for section in _EXAMPLES:
        cls = section_class(section, values[section])
        try:
            parsed[section] = cls.model_validate(values[section])
        except ValidationError as error:
            problems += messages.readable(error, cls, section)
            parsed[section] = Section()  # so that the rest is still checked
    try:
        experiment = Experiment.model_validate(parsed)
    except ValidationError as error:
        problems += messages.readable(error, Experiment)
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    _check_together(experiment)
    return experiment


def _check_together(experiment: Experiment) -> None:
    clients: int = getattr(experiment.partition, "num_clients")  # noqa: B009 - every partition has it
    training = experiment.training
    if training.clients_per_round > clients:
        said = f"{training.clients_per_round} is more than partition.num_clients = {clients}"
        raise UserError(f"training.clients_per_round: {said}; at most {clients} is allowed")
    if training.optimizer == "adam" and training.momentum:
        said = f"{training.momentum} has no meaning with training.optimizer 'adam'"
        raise UserError(f"training.momentum: {said}; use optimizer 'sgd' or leave momentum at 0")
    algorithm = plugins.find("algorithms", getattr(experiment.algorithm, "name"))  # noqa: B009 - every section has one
    algorithm(experiment.algorithm, training).check(experiment)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-3 as text; people mean a number."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
