"""A run's model and tables in formats other tools read."""

from pathlib import Path

from feddual import api
from feddual.data.files import whole_file
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
        with whole_file(target) as partial:
            run.model(round_index).save(partial)
        return [target]
    folder = out or run.path / "export"
    written = {name: folder / f"{name}.{to}" for name in ("metrics", "clients", "timings")}
    for name, target in written.items():
        with whole_file(target) as partial:
            getattr(getattr(run, name), f"to_{to}")(partial, index=False)
    return list(written.values())
