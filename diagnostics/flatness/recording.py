"""Surfaces of several runs, recorded in their folders so that figures and report can compare them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from diagnostics.flatness import matching
from diagnostics.landscape import loss_surface
from feddual.records.run_dir import RunDir


def record(
    groups: Mapping[str, Sequence[Path]],
    pairs: int = 5,
    *,
    grid: int | str = 25,
    images: int | None = 2000,
    split: str = "train",
    seed: int = 0,
    matches: str | Sequence[str] | None = None,
    logit_norm: bool = True,
    **running: Any,
) -> list[Path]:
    """Measure the same planes around all runs' models; those that are there already are only read.

    Args:
        groups: Runs by model, one of each training seed.
        pairs: Of random directions.
        grid: Points along each axis of a surface.
        images: Samples.
        split: train or test.
        seed: Of directions and samples.
        matches: What is equal, as for `compare_models`: round, loss or both.
        logit_norm: Also with normalised logits.
        **running: How: `workers`, `executor`, `progress`.

    Returns:
        The surfaces' folders: `pair-0`, `pair-0-normalised`, `loss-0.61-pair-0`, ... in each run's `surfaces/`.

    Raises:
        UserError: As `compare_models` does; and where a folder holds another measurement.
    """
    lists = {name: list(group) for name, group in groups.items()}
    rows = {"images": images, "split": split, "seed": seed}
    made = []
    for match, name, place, chosen in matching.cases(lists, None, None, matches, rows, {}):
        level = f"loss-{chosen.facts['level']:.4g}-" if match == "loss" else ""
        for pair in range(pairs):
            for normalised in (False, True) if logit_norm else (False,):
                folder = f"{level}pair-{pair}{'-normalised' * normalised}"
                made.append(RunDir(lists[name][place]).surface_path(folder))
                loss_surface(
                    chosen, grid=grid, direction=pair, seed=seed, logit_norm=normalised, out=made[-1], **running
                )
    return made
