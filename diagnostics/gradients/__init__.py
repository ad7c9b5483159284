"""Per-layer gradient norms: what people mean by it, measured during training or afterwards, and compared."""

from diagnostics import _doors

_HOMES = {
    "definitions": "DEFINITIONS definition describe",
    "comparing": "COLUMNS per_round bands log_ratios ratios ratios_by_seed ratio_tables level",
    "layers": "NORMALISATIONS Groups normalise",
    "contract": "Definition two_halves",
}
__getattr__, __dir__ = _doors(__name__, _HOMES)
