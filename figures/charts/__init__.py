"""One description of a chart, drawn by matplotlib and by plotly; imported when it is first used."""

import importlib
from typing import Any

_HOMES = {**dict.fromkeys(("Bars", "Chart", "Heat", "Line", "Panel", "save"), "describe"), "Look": "style"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")


def __dir__() -> list[str]:
    return sorted(_HOMES)
