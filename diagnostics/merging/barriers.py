"""Can these models be averaged? Losses on the way from one to another, layer by layer, and of mixed models.

Of a round: its clients in pairs, each client and the average they made. Of several models (seeds, or any Keras models
of one architecture): each pair. `measuring.barrier` has the formula. A layer is tested in two ways:

- along its own line: only that layer moves from one model to the other, the others stay as in the first and, once more,
  as in the second. Its barrier says whether the two layers can be mixed at all;
- against the global model that the server made of the clients, which is their average unless the algorithm does
  something else: the client's model with only this layer taken from it (`averaged`), and the global model with only
  this layer kept as the client has it (`kept`), on all clients' data and on the client's own.

The second is the direct test of the claim that averaging hurts the last layers: if so, averaging a last layer alone
must cost the client more on its own data than averaging an early one, and keeping it must bring more back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from diagnostics import subject as samples
from diagnostics import tables
from diagnostics.landscape import Landscape
from diagnostics.merging import alignment
from diagnostics.merging.clients import ClientModels, client_models
from diagnostics.merging.measuring import ENDS, WHOLE, Layers, Losses, balanced_pairs, line, steps
from diagnostics.merging.result import FILE, Barriers, check
from diagnostics.progress import PointProgress
from diagnostics.subject import Subject
from diagnostics.surfaces.measure import versions
from feddual.api import Run
from feddual.errors import UserError
from feddual.functional.layout import Layout, fingerprint, read
from feddual.records.identity import replicate

AS_TRAINED, ALIGNED = "as trained", "aligned"
CLIENTS, GLOBAL, MODELS = "clients", "client and global", "models"
MEAN = "mean"  # of the clients, where the server made something else of them
MADE = "global"  # the model that the server made of the clients
BN = Literal["recalibrate", "interpolate"]


def barriers(
    source: Any,
    x: Any = None,
    y: Any = None,
    *,
    round: int | None = None,
    pairs: int | None = 10,
    grid: int = 9,
    layers: bool = True,
    align: bool = False,
    own: bool = True,
    bn: BN = "recalibrate",
    images: int | None = 2000,
    split: str = "train",
    seed: int = 0,
    batch_size: int = 500,
    out: str | Path | None = None,
    progress: bool = True,
) -> Barriers:
    """Barriers between the clients of a round, each client and the global model, or between several models.

    Args:
        source: A run or its folder: the models of a round's clients, regenerated. Or models by name: runs (their global
            models, all evaluated on the first one's data that clients of all hold) or Keras models of one architecture.
        x: Inputs, for Keras models.
        y: Targets.
        round: Of a run: one of `run.replayable`, the last by default. Of several runs: a kept checkpoint.
        pairs: At most so many pairs, in which all models take part about equally often; None for all.
        grid: Points of a line, odd.
        layers: Also layer by layer.
        align: Also with each model's hidden units in the order that lies nearest to the other's (`alignment.py`).
        own: Also evaluate clients' models on their own data; only of a run's round.
        bn: Moving statistics of batch normalisation: estimated anew at every point, the ends too, on the samples
            (recalibrate), or moved along (interpolate). Without batch normalisation both are the same.
        images: Samples, fixed and stratified; None for all.
        split: Of runs: train (pooled over the clients) or test.
        seed: Of the choice of samples.
        batch_size: Samples at a time.
        out: A folder to keep the result in; the same call reads it, another measurement is refused.
        progress: Show a bar.

    Returns:
        Tables of models, lines, what is read off them, and layers exchanged.

    Raises:
        UserError: For input that cannot be used, before anything is measured.

    Example:
        >>> import diagnostics, keras
        >>> models = {name: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)]) for name in ("a", "b")}
        >>> x, y = keras.random.normal((60, 4)).numpy(), [0, 1, 2] * 20
        >>> found = diagnostics.barriers(models, x, y, progress=False)  # softmax regression is convex:
        >>> found.values[["first", "second", "layer", "barrier"]].head(1).values.tolist()
        [['a', 'b', 'all', 0.0]]
    """
    t = steps(grid)
    if bn not in ("recalibrate", "interpolate"):
        raise UserError(f"bn: {bn!r} is unknown; allowed: recalibrate, interpolate")
    if pairs is not None and pairs < 1:
        raise UserError(f"pairs: must be at least 1 (or None for all), got {pairs}")
    rows = {"images": images, "split": split, "seed": seed}
    given = _several(source, x, y, round, rows) if isinstance(source, Mapping) else _clients(source, round, own, rows)
    asked = {"pairs": pairs, "grid": grid, "layers": layers, "align": align, "own": own, "bn": bn, **rows}
    identity = asked | {"batch_size": batch_size, **given.identity}
    folder = None if out is None else Path(out)
    if folder is not None:
        check(folder, identity)
        if tables.read(folder / FILE) is not None:
            return Barriers.load(folder)
    made = _Measurement(given, t, pairs, layers, align, bn, batch_size).run(asked, identity, progress)
    if folder is not None:
        made.save(folder)
    return made


class _Given:
    """The models, and what they are evaluated on."""

    def __init__(self, subject: Subject, names: Sequence[str], weights: np.ndarray, facts: dict[str, Any]):
        self.subject, self.names, self.weights, self.facts = subject, list(names), weights, facts
        self.clients: ClientModels | None = None
        self.own: dict[str, Subject] = {}

    @property
    def identity(self) -> dict[str, Any]:
        """Hashes of weights and samples."""
        found = {"models": self.names, "weights": fingerprint(self.weights)}
        return found | {"data": fingerprint(self.subject.x, self.subject.y)}


def _clients(source: Any, round_index: int | None, own: bool, rows: Mapping[str, Any]) -> _Given:
    """The clients of a round of a run, and the data they hold."""
    if not isinstance(source, (str, Path, Run)):
        raise UserError("barriers: expected a run, its folder, or models by name, as {'a': model, 'b': model}")
    run = source if isinstance(source, Run) else Run(source)
    found = client_models(run, round_index)
    if len(found.clients) < 2:
        raise UserError(f"{run.path}: round {found.round} has {len(found.clients)} clients; at least two are needed")
    subject = samples.of_run(run, **rows)
    facts = subject.facts | {"round": found.round}
    which, total = list(replicate(run.config.to_dict())), len(found.clients)
    about = {"of": f"{run.config.name}, the {total} clients of round {found.round}", "run": run.path.name}
    given = _Given(replace(subject, facts=facts), found.names, found.weights, about | {"replicate": which})
    given.clients = found
    if own:
        data = samples.of_clients(run, found.clients.tolist(), subject, rows["images"], rows["seed"])
        given.own = dict(zip(found.names, data, strict=True))
    given.facts |= {"exact": found.exact}
    return given


def _several(models: Mapping[str, Any], x: Any, y: Any, round_index: int | None, rows: Mapping[str, Any]) -> _Given:
    """Models by name, on one set of samples."""
    if len(models) < 2:
        raise UserError(f"barriers: at least two models are needed, got {len(models)}")
    runs = {name: Run(one) if isinstance(one, (str, Path)) else one for name, one in models.items()}
    are_runs = [isinstance(one, Run) for one in runs.values()]
    if any(are_runs) and not all(are_runs):
        raise UserError("barriers: give runs or Keras models, not both")
    if all(are_runs):
        several = [*runs.values()]
        chosen = [samples.of_run(run, round_index, among=several, **rows) for run in several]
    else:
        first = next(iter(runs.values()))
        chosen = [samples.resolve(first, x, y, None, **rows)] + [
            replace(samples.of_arrays(one, x, y, rows["images"], rows["seed"])) for one in [*runs.values()][1:]
        ]
    layouts = [Layout.of_model(one.model) for one in chosen]
    for name, layout in zip(models, layouts, strict=True):
        if layout != layouts[0]:
            raise UserError(f"barriers: {name!r} has another architecture than {next(iter(models))!r}")
    weights = np.stack([read(one.model) for one in chosen])
    return _Given(chosen[0], list(models), weights, {"of": f"models {', '.join(models)}"})


class _Measurement:
    """All lines and mixed models, evaluated."""

    def __init__(
        self, given: _Given, t: np.ndarray, pairs: int | None, layers: bool, align: bool, bn: BN, batch_size: int
    ):
        self._given, self._t, self._layers_too = given, t, layers
        self._options: dict[str, Any] = {"bn": bn, "batch_size": batch_size}
        landscape = Landscape(given.subject, **self._options)
        self._objective, self._layers = landscape.objective, Layers(landscape.space.layout)
        self._on_all = Losses(self._objective)
        self._units = alignment.units_of(self._objective.network.whole) if align else None
        self._moved: list[int] = []  # how many units changed places, of each aligned pair
        self._weights = dict(zip(given.names, given.weights, strict=True))
        self._pairs = [(given.names[i], given.names[j]) for i, j in balanced_pairs(len(given.names), pairs)]
        if (found := given.clients) is not None:
            self._weights[MADE] = found.after
            if not np.array_equal(found.mean, found.after):
                self._weights[MEAN] = found.mean

    def run(self, asked: dict[str, Any], identity: dict[str, Any], progress: bool) -> Barriers:
        """The tables."""
        jobs = self._jobs()
        lines, values, exchanges = [], [], []
        clients = self._given.names if self._given.clients is not None else []
        with PointProgress("barriers", len(jobs) + len(clients), progress) as bar:
            for key, first, second in jobs:
                points, found = line(
                    self._on_all, self._layers, first, second, self._t, key["layer"], key["end"] or ENDS[0]
                )
                lines += [key | point for point in points]
                values.append(key | found)
                bar.advance(1)
            models = self._models()
            for name in clients:
                exchanges += self._exchanged(name, models)
                bar.advance(1)
        count = len(self._given.subject.y)
        settings = asked | {"images": count, "t": self._t.tolist(), **self._given.facts, **versions()}
        if self._units is not None:
            settings |= {"units": sum(one.count for one in self._units), "moved_units": self._moved}
        made = [pd.DataFrame(one) for one in (models, lines, values, exchanges)]
        return Barriers(made[0], made[1], made[2], made[3], settings, identity)

    def _jobs(self) -> list[tuple[dict[str, str], np.ndarray, np.ndarray]]:
        """Every line: what it is called, and its ends."""
        clients = self._given.clients is not None
        wanted = [(CLIENTS if clients else MODELS, *pair) for pair in self._pairs]
        wanted += [(GLOBAL, name, MADE) for name in self._given.names] if clients else []
        jobs = []
        for order in (AS_TRAINED, ALIGNED) if self._units is not None else (AS_TRAINED,):
            for between, first, second in wanted:
                ends = (self._weights[first], self._weights[second])
                if order == ALIGNED:
                    ends = self._aligned(*ends)
                key = {"between": between, "first": first, "second": second, "order": order}
                jobs.append((key | {"layer": WHOLE, "end": ""}, *ends))
                if self._layers_too and between != GLOBAL:
                    jobs += [(key | {"layer": one, "end": end}, *ends) for one in self._layers.masks for end in ENDS]
        return jobs

    def _aligned(self, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first model, and the second with its units in the first's order: the same function."""
        made, orders = alignment.align(second, first, self._units or [])
        self._moved.append(sum(int((order != np.arange(len(order))).sum()) for order in orders))
        before, after = (self._on_all(one)[0] for one in (second, made))
        if not np.isclose(before, after, rtol=1e-4, atol=1e-6):
            raise UserError(
                f"align: with its units in another order a model's loss is {after:.6g} instead of {before:.6g}; the "
                "network is not what it was taken for. Please report the model"
            )
        return first, made

    def _exchanged(self, name: str, models: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A client's model with one layer averaged, and the global one with one layer kept; on all data and its own."""
        mine, made = self._weights[name], self._weights[MADE]
        on = {"pooled": self._on_all}
        if name in self._given.own:
            on["own"] = Losses(Landscape(self._given.own[name], **self._options).objective)
            told = dict(zip(("own_loss", "own_error", "global_own_loss", "global_own_error"),
                            (*on["own"](mine), *on["own"](made)), strict=True))  # fmt: skip
            next(row for row in models if row["model"] == name).update(told)
        rows = []
        for data, evaluation in on.items():
            for layer in (*(self._layers.masks if self._layers_too else ()), WHOLE):
                for way, base, other in (("averaged", mine, made), ("kept", made, mine)):
                    before, after = evaluation(base), evaluation(self._layers.exchanged(base, other, layer))
                    change = {"loss": after[0] - before[0], "error": after[1] - before[1]}
                    about = {"client": name, "layer": layer, "way": way, "data": data}
                    rows.append(about | change | {"apart": self._layers.apart(made, mine, layer)})
        return rows

    def _models(self) -> list[dict[str, Any]]:
        """Each model as it is."""
        rows, found = [], self._given.clients
        shares = {} if found is None else dict(zip(found.names, found.shares, strict=True))
        for name, weights in self._weights.items():
            loss, error = self._on_all(weights)
            row: dict[str, Any] = {"model": name, "loss": loss, "error": error}
            if found is not None:
                row["apart"] = self._layers.apart(self._weights[MADE], weights)
                row["share"] = float(shares[name]) if name in shares else None
            rows.append(row)
        return rows
