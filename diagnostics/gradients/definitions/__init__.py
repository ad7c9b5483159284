"""The named definitions of "per-layer gradient norm", one file each.

A picture of "gradient norms" can show the opposite of another one that has the same title: each curve names its
definition and its normalisation.
"""

import importlib
from collections.abc import Mapping
from dataclasses import replace

from diagnostics.gradients.contract import Definition
from feddual.errors import UserError
from feddual.experiment.plugins import load_attribute, module_names


def _shipped() -> dict[str, Definition]:
    modules = [importlib.import_module(f"{__name__}.{name}") for name in module_names(str(__file__))]
    found = [replace(module.DEFINITION, name=module.__name__.rpartition(".")[2]) for module in modules]
    return {one.name: one for one in sorted(found, key=lambda one: one.letter)}


DEFINITIONS = _shipped()


def definition(name: str) -> Definition:
    """A definition by its name, its letter, or `module:name` for one of a user's own.

    Raises:
        UserError: When there is none; it names those there are.
    """
    if ":" in name:
        found = load_attribute(name, "definition")
        if not isinstance(found, Definition):
            raise UserError(f"definition: {name!r} is no Definition but a {type(found).__name__}")
        return found if found.name else replace(found, name=name.rpartition(":")[2].lower())
    for found in DEFINITIONS.values():
        if name in (found.name, found.letter):
            return found
    known = ", ".join(f"{found.letter} {found.name}" for found in DEFINITIONS.values())
    raise UserError(f"definition {name!r} is unknown; allowed: {known}")


def describe() -> list[Mapping[str, str]]:
    """The definitions as rows of a table."""
    return [{"id": d.letter, "name": d.name, "formula": d.formula, "cost": d.cost} for d in DEFINITIONS.values()]
