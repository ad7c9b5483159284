"""The named definitions of "per-layer gradient norm", one file each.

A picture of "gradient norms" can show the opposite of another one that has the same title: each curve names its
definition and its normalisation.
"""

from collections.abc import Mapping
from dataclasses import replace

from diagnostics.gradients.contract import Definition
from feddual.errors import UserError
from feddual.experiment import plugins


def _named(name: str) -> Definition:
    """With its name: that of its file, of its entry point, or of the variable in a user's module."""
    found: Definition = plugins.find("definitions", name, "definition")
    return found if found.name else replace(found, name=name.rpartition(":")[2].lower())


DEFINITIONS = {one.name: one for one in sorted(map(_named, plugins.names("definitions")), key=lambda one: one.letter)}


def definition(name: str) -> Definition:
    """A definition by its name, its letter, or `module:name` for one of a user's own.

    Raises:
        UserError: When there is none; it names those there are.
    """
    for found in DEFINITIONS.values():
        if name in (found.name, found.letter):
            return found
    if ":" in name or name in plugins.names("definitions"):
        return _named(name)
    known = ", ".join(f"{found.letter} {found.name}" for found in DEFINITIONS.values())
    raise UserError(f"definition {name!r} is unknown; allowed: {known}")


def describe() -> list[Mapping[str, str]]:
    """The definitions as rows of a table."""
    return [{"id": d.letter, "name": d.name, "formula": d.formula, "cost": d.cost} for d in DEFINITIONS.values()]
