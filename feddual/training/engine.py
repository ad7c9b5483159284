"""The only round loop."""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from feddual import devices, executors, probes, seeding
from feddual.algorithms._base import ClientResult, ServerState, Slots
from feddual.errors import UserError
from feddual.experiment import config
from feddual.experiment.config import Experiment
from feddual.functional.features import Progress
from feddual.functional.layout import layer_norms, update
from feddual.records import sinks
from feddual.records.identity import changes
from feddual.records.run_dir import Checkpoint, RunDir
from feddual.training import server as server_optimizer
from feddual.training import workbench
from feddual.training.evaluation import all_metrics, classification_metrics, mean_metrics
from feddual.training.local import ClientTask


@dataclass(frozen=True)
class RoundRecord:
    """What happened in a round."""

    round_index: int
    num_rounds: int
    metrics: dict[str, Any]  # the row of metrics.jsonl
    clients: list[dict[str, Any]]  # the rows of clients.jsonl
    timings: dict[str, Any]  # the row of timings.jsonl
    weights: np.ndarray  # the server's, after the round


class ClientStates:
    """Slots of the clients that have any: changed ones in memory until the next checkpoint, the rest on disk."""

    def __init__(self, run: RunDir, saved: dict[int, str], fresh: Slots):
        self._run, self._saved, self._fresh = run, dict(saved), fresh
        self._changed: dict[int, Slots] = {}

    def get(self, client_id: int) -> Slots:
        if client_id in self._changed:
            return self._changed[client_id]
        if client_id in self._saved:
            return self._run.read_client_state(client_id, self._saved[client_id])
        return self._fresh

    def put(self, client_id: int, slots: Slots) -> None:
        if slots:
            self._changed[client_id] = slots

    def save(self) -> dict[int, str]:
        """Write what changed; the hashes of all states, for the checkpoint."""
        for client_id, slots in self._changed.items():
            self._saved[client_id] = self._run.write_client_state(client_id, slots)
        self._changed.clear()
        return dict(self._saved)


def rounds(
    experiment: Experiment, out: str | os.PathLike[str], resume: bool = False,
    extra_probes: Sequence[probes.Probe] = (), progress: Progress | None = None,
) -> Iterator[RoundRecord]:  # fmt: skip
    """Run an experiment into a directory, yielding each round as it ends.

    Args:
        experiment: What to run.
        out: The run directory; must not hold a run unless `resume`.
        resume: Continue from the last good checkpoint, or start if there is none.
        extra_probes: Probes given as objects, besides those of the config.
        progress: Called with (what, done, total) during long preparations.

    Raises:
        UserError: Before anything is changed, when the experiment cannot run there.
    """
    run = RunDir(out)
    if run.exists and not resume:
        raise UserError(f"--out: {run.path} already holds a run; continue it with --resume, or choose another folder")
    if run.exists:
        check_resumable(experiment, config.resolve(run.read_config()), run.path)
    created = not run.path.exists()
    run.create()
    lock = filelock.FileLock(run.lock_path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        said = f"--out: {run.path} is in use by another process; wait for it or choose another folder"
        raise UserError(said) from None
    try:
        yield from RunUnderWay(experiment, run, extra_probes, progress).rounds()
    finally:
        lock.release()
        if created and not run.exists:  # failed before it started: leave nothing behind
            run.lock_path.unlink(missing_ok=True)
            run.path.rmdir()


@dataclass
class Tally:
    """What comes in while a round's clients train."""

    round_index: int
    due: tuple[probes.Probe, ...]  # those that measure this round
    acc: Any = None  # the algorithm's
    rows: list[dict[str, Any]] = field(default_factory=list)  # of clients.jsonl
    measured: dict[str, dict[int, Any]] = field(default_factory=dict)  # by probe and client
    gathered: dict[str, Any] = field(default_factory=dict)  # what each probe accumulates
    client_seconds: float = 0.0  # summed over the clients, wherever they ran
    server_seconds: float = 0.0


class RunUnderWay:
    """What a run builds once, and the state that goes from round to round."""

    def __init__(
        self, experiment: Experiment, run: RunDir, extra_probes: Sequence[probes.Probe], progress: Progress | None
    ):
        """Build the workbench and take up the state of the last good checkpoint, if there is one."""
        self.experiment, self.run, self.total = experiment, run, experiment.training.rounds
        self.identity = worker_view(experiment)
        self.bench = workbench.workbench(self.identity, progress)
        self.algorithm, self.layout = self.bench.algorithm, self.bench.network.layout
        self.probes = [probes.create(entry.model_dump()) for entry in experiment.probes] + list(extra_probes)

        initial = self.bench.initial_weights()
        self.server = ServerState(initial, self.algorithm.init_server(self.layout, initial))
        self.optimizer_slots = server_optimizer.init(experiment.training.server, initial, self.layout.num_trainable)
        saved: dict[int, str] = {}
        self.first = 1
        found = run.last_good_checkpoint() if run.exists else None
        if found is not None:
            if found.layout != self.layout:
                both = f"{found.layout} against {self.layout}"
                raise UserError(f"{run.path}: its checkpoints are of another model; {both}")
            self.server, self.optimizer_slots = ServerState(found.weights, found.server_slots), found.optimizer_slots
            saved, self.first = found.client_states, found.round_index + 1
        self.states = ClientStates(run, saved, self.algorithm.init_client(self.layout, initial))

    def rounds(self) -> Iterator[RoundRecord]:
        """The rounds that are left: the only round loop."""
        if self.first > self.total:
            return
        self._begin()
        try:
            for round_index in range(self.first, self.total + 1):
                started = time.perf_counter()

                # 1. Sample the round's clients.
                tally = Tally(round_index, tuple(p for p in self.probes if p.schedule.due(round_index, self.total)))
                tasks, costs = self._sample(tally)

                # 2. Train them, and take each result in as it comes, in client order; 3. set aside what is not finite.
                for result in self.executor.imap("feddual.training.workbench:train_client", tasks, costs):
                    self._take_in(tally, result)
                trained = time.perf_counter()

                # 4. Aggregate.
                previous, facts = self.server, self._aggregate(tally)
                aggregated = time.perf_counter()

                # 5. Test the global model.
                metrics = self._test(round_index) | self._round_row(tally, previous) | facts
                evaluated = time.perf_counter()

                # 6. Record: rows, probes, sinks.
                self._record(tally, metrics, previous)

                # 7. Save the state.
                self._save(round_index)
                ended = time.perf_counter()
                timings = {
                    "round": round_index,
                    "seconds": ended - started,
                    "train_seconds": trained - started,
                    "client_seconds": tally.client_seconds,
                    "server_seconds": tally.server_seconds + aggregated - trained,
                    "evaluation_seconds": evaluated - aggregated,
                    "record_seconds": ended - evaluated,
                    "peak_memory_bytes": devices.peak_memory(),
                }
                self.run.append("timings", [timings])
                yield RoundRecord(round_index, self.total, metrics, tally.rows, timings, self.server.weights)
        finally:
            self.executor.close()
            for reporter in self.reporters:
                reporter.close()

    def _begin(self) -> None:
        """Write the run's facts, forget what lies after its last checkpoint, open workers and sinks."""
        experiment, run, done = self.experiment, self.run, self.first - 1
        _write_facts(experiment, run, self.bench)
        run.cut_back(done)
        for probe in self.probes:
            probe.start(self._view(probe, done, self.server))
        history = run.rows("metrics")
        self.reporters = [sinks.create(name, run.path, experiment.to_dict(), history) for name in experiment.sinks]
        self.executor = executors.create(experiment.runtime)
        if 0 in experiment.checkpoint.rounds and done == 0:
            run.write_checkpoint(self._checkpoint(0, {}))

    def _view(self, probe: probes.Probe, round_index: int, previous: ServerState) -> probes.RoundView:
        folder, weights = self.run.probe_path(probe.name), (previous.weights, self.server.weights)
        return probes.RoundView(self.bench, self.experiment, round_index, self.total, folder, *weights)

    def _sample(self, tally: Tally) -> tuple[list[ClientTask], list[float]]:
        federation, server = self.bench.federation, self.server
        per_round = self.experiment.training.clients_per_round
        clients = seeding.sample_clients(self.experiment.seed, tally.round_index, federation.num_clients, per_round)
        tally.measured = {probe.name: {} for probe in tally.due}
        sent = (server.weights, self.algorithm.broadcast(server))
        tasks = [
            ClientTask(self.identity, tally.round_index, c, *sent, self.states.get(c), tally.due, self.total)
            for c in map(int, clients)
        ]
        return tasks, [float(size) for size in federation.partition.sizes[clients]]

    def _take_in(self, tally: Tally, result: ClientResult) -> None:
        before = time.perf_counter()
        tally.rows.append({"round": tally.round_index, **result.metrics, "finite": result.is_finite})
        tally.client_seconds += result.seconds
        for name, values in result.probes.items():
            tally.measured[name][result.client_id] = values
        if result.is_finite:
            tally.acc = self.algorithm.accumulate(tally.acc, result, self.server)
            self.states.put(result.client_id, result.slots)
        tally.server_seconds += time.perf_counter() - before
        for probe in tally.due if result.is_finite else ():
            share = self.algorithm.client_weight(result)
            known = tally.gathered.get(probe.name)
            tally.gathered[probe.name] = probe.accumulate(known, result, self.server.weights, share)

    def _aggregate(self, tally: Tally) -> dict[str, Any]:
        """The server's next state, from what the clients sent, if any of it was finite; facts of the round."""
        if tally.acc is None:
            return {}
        clients, sent = self.bench.federation.num_clients, self.server.weights
        aggregated, facts = self.algorithm.finish(self.server, tally.acc, self.layout, clients)
        weights, self.optimizer_slots = server_optimizer.step(
            self.experiment.training.server, sent, aggregated.weights, self.optimizer_slots, self.layout.num_trainable
        )
        self.server = replace(aggregated, weights=weights)
        models = self.algorithm.evaluation_weights(self.server, self.layout)
        self.optimizer_slots = server_optimizer.averaged(self.experiment.training.server, models, self.optimizer_slots)
        return facts

    def _test(self, round_index: int) -> dict[str, Any]:
        """Metrics on the test data, in the rounds that are tested; several models are averaged."""
        if round_index % self.experiment.evaluation.every and round_index != self.total:
            return {}
        evaluator, num_classes = self.bench.evaluator, self.bench.federation.dataset.num_classes
        measure = all_metrics if self.experiment.evaluation.metrics == "all" else classification_metrics
        found = []
        models = self.algorithm.evaluation_weights(self.server, self.layout)
        for model in np.atleast_2d(server_optimizer.tested(self.optimizer_slots, models)):
            parts = evaluator.slices(self.executor.workers)
            tasks = [workbench.EvaluationTask(self.identity, model, *part) for part in parts]
            logits = np.concatenate(list(self.executor.imap("feddual.training.workbench:answers", tasks)))
            found.append(measure(logits, evaluator.labels, num_classes))
        return {"round": round_index, **(found[0] if len(found) == 1 else mean_metrics(found))}

    def _round_row(self, tally: Tally, previous: ServerState) -> dict[str, Any]:
        """What is recorded of a round for every algorithm."""
        rows, good = tally.rows, [row for row in tally.rows if row["finite"]]
        norms = layer_norms(self.layout, update(self.server.weights, previous.weights))
        down, up = self.algorithm.communication(self.layout)

        def mean(key: str) -> float | None:
            return float(np.mean([row[key] for row in good])) if good and good[0][key] is not None else None

        return {
            "round": tally.round_index,
            **{key: mean(key) for key in ("train_loss", "train_accuracy")},
            "num_clients": len(rows),
            "num_set_aside": len(rows) - len(good),
            **{key: sum(row[key] for row in rows) for key in ("num_examples", "steps")},
            "bytes_down": 4 * down * len(rows),
            "bytes_up": 4 * up * len(rows),
            "update_norm": float(np.sqrt(sum(norm**2 for norm in norms.values()))),
            "update_norms": norms,
            **{name: mean(name) for name in self.algorithm.epoch_facts if good and name in good[0]},
        }

    def _record(self, tally: Tally, metrics: dict[str, Any], previous: ServerState) -> None:
        self.run.append("clients", tally.rows)
        self.run.append("metrics", [metrics])
        for probe in tally.due:
            view = self._view(probe, tally.round_index, previous)
            probe.record(view, tally.measured[probe.name], tally.gathered.get(probe.name))
        for reporter in self.reporters:
            reporter.record(metrics)

    def _save(self, round_index: int) -> None:
        policy = self.experiment.checkpoint
        if round_index % policy.every == 0 or round_index in policy.rounds or round_index == self.total:
            self.run.write_checkpoint(self._checkpoint(round_index, self.states.save()))
            self.run.prune(policy.keep, policy.rounds)

    def _checkpoint(self, round_index: int, client_states: dict[int, str]) -> Checkpoint:
        kept = (self.server.slots, client_states, self.optimizer_slots)
        return Checkpoint(round_index, self.server.weights, self.layout, *kept)


def worker_view(experiment: Experiment) -> str:
    """The experiment as workers see it: without what concerns only the host, so that their cache is hit."""
    training = experiment.training.model_copy(update={"rounds": 1})
    hosts = {"name": "run", "probes": [], "sinks": [], "checkpoint": config.CheckpointPolicy()}
    return experiment.model_copy(update={**hosts, "training": training}).to_json()


def check_resumable(asked: Experiment, found: Experiment, path: Path) -> None:
    """Refuse to continue a run with another experiment, naming the differences."""
    before, now = found.to_dict(), asked.to_dict()
    if now["training"]["rounds"] > before["training"]["rounds"]:
        before["training"]["rounds"] = now["training"]["rounds"]
    found_by_key = changes(before, now).items()
    differences = [f"  {key}: the run has {was!r}, asked for {asks!r}" for key, (was, asks) in found_by_key]
    if differences:
        allowed = "Only runtime, checkpoint, probes, sinks and a larger training.rounds may change."
        raise UserError("\n".join([f"--resume: {path} holds a run of another experiment:", *differences, allowed]))


def _write_facts(experiment: Experiment, run: RunDir, bench: workbench.Workbench) -> None:
    environment = devices.environment() | {
        "dataset_hash": bench.federation.dataset.fingerprint,
        "frozen_weights_hash": bench.network.frozen_hash,
    }
    known = run.environment
    if known is not None:
        for key in ("threads", "cpu_features", "tensorflow", "onednn", "dataset_hash", "frozen_weights_hash"):
            if known.get(key) != environment[key]:
                warnings.warn(
                    f"{run.path}: resumed with {key} = {environment[key]!r}, it began with {known.get(key)!r}; "
                    "the last bits may differ from an uninterrupted run",
                    stacklevel=3,
                )
    else:
        run.write_environment(environment)
    split = bench.federation.partition
    run.write_partition(split.indices, split.offsets, bench.federation.histograms(), split.fingerprint)
    run.write_config(experiment.to_yaml())  # last: with it, the directory is a run
