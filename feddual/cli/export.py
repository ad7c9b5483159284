"""A run's model and tables in formats other tools read."""

import os
from pathlib import Path

from feddual import api
from feddual.errors import UserError

FORMATS = ("keras", "csv", "parquet")


def export(run_path: Path, to: str, out: Path | None = None, round_index: int | None = None) -> list[Path]:
    """Write a run's model (`keras`) or its tables (`csv`, `parquet`); each file whole or not at all.

    Returns:
        The files written.
    """
    if to not in FORMATS:
        raise UserError(f"--to: {to!r} is unknown; allowed: {', '.join(FORMATS)}")
    run = api.open(run_path)
    if to == "keras":
        target = out or run.path / "model.keras"
        if target.suffix != ".keras":
            raise UserError(f"--out: {target} must end in .keras")
        partial = target.with_name(f".{os.getpid()}.{target.name}")
        run.model(round_index).save(partial)
        os.replace(partial, target)
        return [target]
    folder = out or run.path / "export"
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name in ("metrics", "clients", "timings"):
        frame = getattr(run, name)
        target = folder / f"{name}.{to}"
        partial = target.with_name(f".{os.getpid()}.{target.name}")
        if to == "csv":
            frame.to_csv(partial, index=False)
        else:
            frame.to_parquet(partial, index=False)
        os.replace(partial, target)
        written.append(target)
    return written
