r"""Which tensors of a model a rule applies to, written as text.

* `all`, `none`
* `last_layers:2`: the tensors of the last two layers that have weights; `first:1`: of the first one;
  `random:2`: of two layers drawn with a fixed seed
* `last_tensors:2`: the last two tensors, kernel and bias of the output layer
* `output,dense2`: layers, or tensors such as `output/kernel`, by name
* `re:conv\d`: tensors whose path matches a regular expression
"""

import re
from collections.abc import Sequence

import numpy as np

from feddual.errors import UserError
from feddual.functional.layout import Entry, Layout

COUNTED = ("last_layers", "last_tensors", "first", "random")


def select(layout: Layout, mask: str, field: str = "algorithm.mask") -> tuple[Entry, ...]:
    """The trainable entries a mask names, in the model's order."""
    trainable = [entry for entry in layout.entries if entry.trainable]
    layers = list(layout.layers)
    kind, _, argument = mask.partition(":")
    if mask == "all":
        return tuple(trainable)
    if mask == "none":
        return ()
    if kind == "re":
        try:
            chosen = [entry for entry in trainable if re.search(argument, entry.path)]
        except re.error as error:
            raise UserError(f"{field}: {mask!r} is not a regular expression ({error})") from error
        return _not_empty(chosen, mask, field, layout)
    if kind in COUNTED:
        most = len(trainable) if kind == "last_tensors" else len(layers)
        if not argument.isdigit() or not 1 <= int(argument) <= most:
            raise UserError(f"{field}: {mask!r} needs a number from 1 to {most} after the colon")
        count = int(argument)
        if kind == "last_tensors":
            return tuple(trainable[len(trainable) - count :])
        picked = {
            "last_layers": layers[len(layers) - count :],
            "first": layers[:count],
            "random": np.random.default_rng(0).permutation(layers)[:count].tolist(),
        }[kind]
        return tuple(entry for entry in trainable if entry.layer in picked)
    names = [name.strip() for name in mask.split(",")]
    unknown = [name for name in names if name not in layers and name not in layout.by_path]
    if unknown:
        raise UserError(
            f"{field}: {mask!r} names {', '.join(map(repr, unknown))}; the model has the layers {', '.join(layers)}. "
            f"Also allowed: all, none, {', '.join(f'{kind}:N' for kind in COUNTED)}, re:PATTERN"
        )
    return _not_empty([e for e in trainable if e.layer in names or e.path in names], mask, field, layout)


def indices(entries: Sequence[Entry]) -> np.ndarray:
    """The positions of these entries in the vector."""
    return np.concatenate([np.arange(entry.start, entry.stop) for entry in entries] or [np.zeros(0, int)])


def _not_empty(chosen: Sequence[Entry], mask: str, field: str, layout: Layout) -> tuple[Entry, ...]:
    if not chosen:
        raise UserError(f"{field}: {mask!r} matches none of {', '.join(layout.by_path)}")
    return tuple(chosen)
