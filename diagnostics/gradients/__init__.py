"""Per-layer gradient norms: what people mean by it, measured during training or afterwards, and compared."""

import importlib
from typing import Any

_HOMES = {
    **dict.fromkeys(("DEFINITIONS", "definition", "describe"), "definitions"),
    **dict.fromkeys(
        ("COLUMNS", "per_round", "bands", "log_ratios", "ratios", "ratios_by_seed", "ratio_tables", "level"),
        "comparing",
    ),
    **dict.fromkeys(("NORMALISATIONS", "Groups", "normalise"), "layers"),
    **dict.fromkeys(("Definition", "two_halves"), "contract"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")


def __dir__() -> list[str]:
    return sorted(_HOMES)
