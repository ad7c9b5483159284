"""The kinds of things one can add, in one table, and how one of them is found by its name.

A name is one of those that come with the project (a file of a package, or a key of a module's dictionary), one that an
installed package declares as an entry point of the group `feddual.<kind>`, or `module:name` for anything that can be
imported, also from the current folder. Homes are written as text and imported when something is looked up in them, so
this room needs no other.
"""

import ast
import importlib
import importlib.util
import inspect
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feddual.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Kind:
    """Where the things of a kind are, and what each must be."""

    one: str  # what one of them is called
    homes: tuple[str, ...]  # packages whose files are found by name, or `module:DICTIONARY`
    attribute: str = ""  # what a file holds under this name ({} for the file's own); else what is a `base`
    base: str = ""  # the class, as `module:Class`, that it must be a subclass of; without one, it must be callable
    made: bool = False  # it must be an instance of that class instead
    dashed: bool = False  # the file gradient_norms.py is called gradient-norms


_NORMS = "diagnostics.gradients"
_DEFINITION = f"{_NORMS}.contract:Definition"
KINDS = {
    "algorithms": Kind("algorithm", ("feddual.algorithms",), base="feddual.algorithms._base:Algorithm"),
    "barycenters": Kind("barycenter", ("feddual.barycenter:METHODS",)),
    "commands": Kind("diagnostics command", ("diagnostics.commands",), attribute="{}"),
    "datasets": Kind("data set", ("feddual.data.datasets:DATASETS",)),
    "definitions": Kind("gradient-norm definition", (f"{_NORMS}.definitions",), "DEFINITION", _DEFINITION, made=True),
    "executors": Kind("executor", ("feddual.executors",), attribute="create"),
    "figures": Kind("figure", ("figures.general", "figures.paper"), attribute="draw"),
    "models": Kind("model", ("feddual.models:MODELS",)),
    "partitions": Kind("partition", ("feddual.data.partition:PARTITIONS",)),
    "probes": Kind("probe", ("diagnostics.probes",), attribute="PROBE", base="feddual.probes:Probe", dashed=True),
    "sections": Kind("report section", ("figures.report:SECTIONS",)),
    "sinks": Kind("sink", ("feddual.records.sinks:SINKS",)),
}


_ROOT = Path(__file__).parents[1]
SHELVES = {"experiments": _ROOT / "experiment" / "presets", "studies": _ROOT / "studies"}


def shelf(name: str) -> dict[str, Path]:
    """The shipped experiments or studies: names to YAML files, which begin with a comment that says what they are."""
    return {path.stem: path for path in sorted(SHELVES[name].glob("*.yaml"))}


def names(kind: str) -> tuple[str, ...]:
    """What can be named: what comes with the project, then what installed packages bring."""
    return tuple(dict.fromkeys([*(name for home in KINDS[kind].homes for name in _in(home, kind)), *_installed(kind)]))


def find(kind: str, name: str, field: str = "") -> Any:
    """The thing of that name.

    Args:
        kind: A key of `KINDS`.
        name: One of `names(kind)`, or `module:name`.
        field: Where the name was given, for messages.

    Raises:
        UserError: When there is none, when it cannot be imported, or when it is not what things of its kind must be.
    """
    said = f"{field}: " if field else ""
    home = next((home for home in KINDS[kind].homes if name in _in(home, kind)), None)
    if ":" in name:
        found = load_attribute(name, field)
    elif home is not None:
        found = _shipped(home, kind, name)
    elif name in _installed(kind):
        found = load_attribute(_installed(kind)[name].value, f"{said}{name!r}")
    else:
        raise UserError(f"{said}{name!r} is unknown; {allowed(name, names(kind))}, or module:name")
    if not _fits(KINDS[kind], found):
        what = KINDS[kind].base.partition(":")[2]
        must_be = f"{'an instance' if KINDS[kind].made else 'a subclass'} of {what}" if what else "callable"
        raise UserError(f"{said}{name!r} is {found!r}; every {KINDS[kind].one} is {must_be}")
    return found


def known(kind: str, name: str) -> str:
    """The name itself, if something has it; for fields of a config."""
    find(kind, name)
    return name


def describe(kind: str) -> list[tuple[str, str]]:
    """Each name of a kind or a shelf, and the first line of what is said of it; files are read, not imported."""
    if kind in SHELVES:
        return [(name, path.read_text("utf-8").split("\n")[0].strip("# ")) for name, path in shelf(kind).items()]
    rows: list[tuple[str, str | None]] = []
    for home in KINDS[kind].homes:
        for name, place in _in(home, kind).items():
            on_file = isinstance(place, Path)
            rows.append((name, ast.get_docstring(ast.parse(place.read_text("utf-8"))) if on_file else _doc(kind, name)))
    rows += [(name, _doc(kind, name)) for name in names(kind)[len(rows) :]]
    return [(name, (text or "").split("\n")[0]) for name, text in rows]


def allowed(value: str, names: Iterable[str], short: Iterable[str] = ()) -> str:
    """The near miss, among the names and short forms of them, and all that would do."""
    import difflib

    there = list(names)
    near = difflib.get_close_matches(value, [*there, *short], 1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"allowed: {', '.join(there)}"


def load_attribute(path: str, field: str) -> Any:
    """The object behind `package.module:attribute`, also when the module lies in the current folder.

    Raises:
        UserError: Naming `field`, when there is no such module or attribute.
    """
    said = f"{field}: " if field else ""
    module_name, _, attribute = path.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{said}cannot import {module_name!r} of {path!r}: {error}") from error
    if not hasattr(module, attribute):
        raise UserError(f"{said}module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


def _attribute(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _in(home: str, kind: str) -> dict[str, Any]:
    """What a home holds: names to files, or to the things themselves (or to `module:name`, where that is enough)."""
    return _attribute(home) if ":" in home else _files(home, KINDS[kind].dashed)


@cache
def _files(package: str, dashed: bool) -> dict[str, Path]:
    """The public modules of a package, none of them imported."""
    spec = importlib.util.find_spec(package)
    folders = list((spec and spec.submodule_search_locations) or [])
    found = sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))
    places = {name: Path(folders[0], f"{name}.py") for name in found}
    return {name.replace("_", "-") if dashed else name: place for name, place in places.items()}


def _shipped(home: str, kind: str, name: str) -> Any:
    place = _in(home, kind)[name]
    if isinstance(place, str):
        return _attribute(place)
    if not isinstance(place, Path):
        return place
    module = importlib.import_module(f"{home}.{place.stem}")
    if KINDS[kind].attribute:
        return getattr(module, KINDS[kind].attribute.format(place.stem))
    own = (thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__)
    return next(thing for thing in own if _fits(KINDS[kind], thing))


def _installed(kind: str) -> "dict[str, EntryPoint]":
    return _entry_points(f"feddual.{kind}", tuple(sys.path))


@cache
def _entry_points(group: str, path: tuple[str, ...]) -> "dict[str, EntryPoint]":
    """Entry points of installed packages; read once for each module path, since it means opening many files."""
    from importlib.metadata import entry_points

    return {entry.name: entry for entry in sorted(entry_points(group=group), key=lambda entry: entry.name)}


def _fits(kind: Kind, thing: Any) -> bool:
    """Whether a thing is what its kind asks for."""
    if not kind.base:
        return callable(thing)
    base = _attribute(kind.base)
    return isinstance(thing, base) if kind.made else isinstance(thing, type) and issubclass(thing, base)


def _doc(kind: str, name: str) -> str | None:
    try:
        return inspect.getdoc(find(kind, name))
    except UserError as error:
        return f"broken: {error}"
