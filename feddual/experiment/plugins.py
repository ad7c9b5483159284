"""Finding things by name: modules of a package by file name, a user's own by `package.module:attribute`."""

import importlib
import pkgutil
import sys
from pathlib import Path
from typing import Any

from feddual.errors import UserError


def module_names(package_file: str) -> tuple[str, ...]:
    """The public modules beside a package's `__init__.py`."""
    found = pkgutil.iter_modules([str(Path(package_file).parent)])
    return tuple(sorted(module.name for module in found if not module.name.startswith("_")))


def load_attribute(path: str, field: str) -> Any:
    """The object behind `package.module:attribute`, also when the module lies in the current folder.

    Raises:
        UserError: Naming `field`, when there is no such module or attribute.
    """
    module_name, _, attribute = path.partition(":")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UserError(f"{field}: cannot import {module_name!r} of {path!r}: {error}") from error
    if not hasattr(module, attribute):
        raise UserError(f"{field}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)
