"""The words of pictures: titles and captions, generated with the facts of what is drawn."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics.surfaces.objective import NORMALISED
from feddual.records.run_dir import atomic_write
from figures.charts.describe import Chart


def title(surface: Any, name: str = "") -> str:
    """What a panel must say: L(0), accuracy, the gradient's norm, and if they are not of the logits as they are."""
    return "\n".join(filter(None, [name, at_centre([surface]), of_logits(surface)]))


def of_logits(surface: Any) -> str:
    """That the logits are normalised, if they are."""
    return "logits normalised" if str(surface.meta["identity"].get("loss")).endswith(NORMALISED) else ""


def at_centre(surfaces: Sequence[Any]) -> str:
    """L(0), accuracy and the gradient's norm; of several surfaces their means."""
    parts = []
    for key, words in (("loss", "L(0) = {:.3f}"), ("accuracy", "accuracy {:.1%}"), ("gradient_norm", "‖g‖ = {:.2g}")):
        values = [surface.meta["facts"].get(key) for surface in surfaces]
        if None not in values:
            parts.append(words.format(np.mean(values)))
    return ", ".join(parts)


def caption(surface: Any) -> str:
    """The facts of a measurement, in sentences for the text below a figure."""
    identity, facts = surface.meta["identity"], surface.meta["facts"]
    model = facts.get("source", "the model")
    if "round" in facts:
        model += f" ({facts['algorithm']} on {facts['dataset']}) after round {facts['round']}"
    if "level" in facts:
        model += f", the kept checkpoint nearest to training loss {facts['level']:.3g} ({facts['training_loss']:.3g})"
    split = {"train": "training", "test": "test", "given": "given"}.get(facts.get("split", ""), facts.get("split", ""))
    if identity["kind"] == "surface":
        what = f"Loss over a plane of {len(surface.alphas)} × {len(surface.betas)} points through {model}"
    else:
        what = f"Loss along {len(surface.loss)} directions ({len(surface.alphas)} points each) through {model}"
    names = identity["direction_names"]
    noise = all(name.startswith("random") and ", with " not in name for name in names)
    still = "; biases and normalisation layers unmoved" if noise else ""
    unit = "moves every filter by its own norm" if "filter" in names[0] else "is the direction's own length"
    without = ", without the layers' regularisation" if facts.get("regularisation") == "left out" else ""
    left = facts.get("held_by_nobody")
    pool = f" of the {facts['pool']} that clients hold (nobody holds the other {left})" if left else ""
    sentences = [
        f"{what}; {identity['loss']}{without}, mean of {facts['images']} {split} samples{pool}.",
        f"Directions: {'; '.join(names[:2])}{still}.",
        f"Axes from {surface.alphas[0]:g} to {surface.alphas[-1]:g}; 1 {unit}.",
        f"At the centre: {at_centre([surface])}; standard error of the loss at most {np.nanmax(surface.sem):.2g}.",
        f"Moving statistics: {identity['bn']}. Weights {identity['weights'][:8]}, data {identity['data'][:8]}.",
    ]
    if facts.get("two_level"):
        level = facts["two_level"]
        sentences.append(
            f"{level['share_refined']:.0%} of the points on all samples, the others on "
            f"{identity['two_level']['images']} (error {level['rms_error']:.2g} root mean square where both are known)."
        )
    if not surface.computed.all():
        sentences.append(f"Unfinished: {surface.computed.mean():.0%} of the points.")
    return " ".join(sentences)


def captions(shown: Mapping[str, Any], about: str = "") -> str:
    """The caption of a picture of several measurements: a paragraph about it, then one for each."""
    return "\n".join([*filter(None, [about]), *(f"{name}: {caption(one)}" for name, one in shown.items())])


def save(shown: Any, path: Path, text: str, dpi: int = 150) -> Path:
    """Write a chart or a matplotlib figure, and its caption beside it as text."""
    figure = shown.matplotlib() if isinstance(shown, Chart) else shown
    figure.savefig(path, dpi=dpi)
    atomic_write(path.with_suffix(".txt"), f"{text}\n".encode())
    return path
