"""The only round loop."""

import os
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import numpy as np

from feddual import devices, executors, probes, seeding
from feddual.algorithms._base import ClientResult, ServerState, Slots
from feddual.errors import UserError
from feddual.experiment import config
from feddual.experiment.config import Experiment
from feddual.functional import rewrites as acceleration
from feddual.functional.layout import layer_norms, update
from feddual.records import sinks
from feddual.records.identity import changes
from feddual.records.run_dir import Checkpoint, RunDir
from feddual.training import workbench
from feddual.training.evaluation import classification_metrics, mean_metrics
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


@dataclass(frozen=True)
class ProbeHost:
    """What a probe's host half may know."""

    path: Path  # probes/<name>/ of the run
    round_index: int
    bench: workbench.Workbench
    previous: np.ndarray  # the global weights before the round
    weights: np.ndarray  # and after it


def rounds(
    experiment: Experiment,
    out: str | os.PathLike[str],
    resume: bool = False,
    extra_probes: Sequence[probes.Probe] = (),
    progress: acceleration.Progress | None = None,
) -> Iterator[RoundRecord]:
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
        raise UserError(
            f"--out: {run.path} is in use by another process; wait for it or choose another folder"
        ) from None
    try:
        yield from _rounds(experiment, run, extra_probes, progress)
    finally:
        lock.release()
        if created and not run.exists:  # failed before it started: leave nothing behind
            run.lock_path.unlink(missing_ok=True)
            run.path.rmdir()


def _rounds(
    experiment: Experiment, run: RunDir, extra_probes: Sequence[probes.Probe], progress: acceleration.Progress | None
) -> Iterator[RoundRecord]:
    training, total = experiment.training, experiment.training.rounds
    identity = worker_view(experiment)
    bench = workbench.workbench(identity, progress)
    algorithm, layout = bench.algorithm, bench.network.layout
    active = [probes.create(probe.model_dump()) for probe in experiment.probes] + list(extra_probes)

    initial = bench.initial_weights()
    server = ServerState(initial, algorithm.init_server(layout, initial))
    saved: dict[int, str] = {}
    first = 1
    checkpoint = run.last_good_checkpoint() if run.exists else None
    if checkpoint is not None:
        if checkpoint.layout != layout:
            raise UserError(f"{run.path}: its checkpoints are of another model; {checkpoint.layout} against {layout}")
        server = ServerState(checkpoint.weights, checkpoint.server_slots)
        saved, first = checkpoint.client_states, checkpoint.round_index + 1
    if first > total:
        return
    states = ClientStates(run, saved, algorithm.init_client(layout, initial))

    _write_facts(experiment, run, bench)
    run.cut_back(first - 1)
    for probe in active:
        probe.start(ProbeHost(run.probe_path(probe.name), first - 1, bench, server.weights, server.weights))
    history = run.rows("metrics")
    reporters = [sinks.create(name, run.path, experiment.to_dict(), history) for name in experiment.sinks]
    executor = executors.create(experiment.runtime)
    saved_rounds = set(experiment.checkpoint.rounds)
    if 0 in saved_rounds and first == 1:
        run.write_checkpoint(Checkpoint(0, server.weights, layout, server.slots, {}))

    try:
        for round_index in range(first, total + 1):
            started = time.perf_counter()

            # 1. Sample the round's clients.
            clients = seeding.sample_clients(
                experiment.seed, round_index, bench.federation.num_clients, training.clients_per_round
            )
            due = tuple(probe for probe in active if probe.schedule.due(round_index, total))
            costs = [float(size) for size in bench.federation.partition.sizes[clients]]
            tasks = [
                ClientTask(
                    identity,
                    round_index,
                    int(client),
                    server.weights,
                    server.slots,
                    states.get(int(client)),
                    due,
                    total,
                )
                for client in clients
            ]

            # 2. Train them, and take each result in as it comes, in client order; 3. set aside what is not finite.
            acc: Any = None
            rows: list[dict[str, Any]] = []
            measured: dict[str, dict[int, Any]] = {probe.name: {} for probe in due}
            gathered: dict[str, Any] = {}
            client_seconds = 0.0
            server_seconds = 0.0
            for result in executor.imap("feddual.training.workbench:train_client", tasks, costs):
                before = time.perf_counter()
                rows.append(_client_row(round_index, result))
                client_seconds += result.seconds
                for name, values in result.probes.items():
                    measured[name][result.client_id] = values
                if result.is_finite:
                    acc = algorithm.accumulate(acc, result, server)
                    states.put(result.client_id, result.slots)
                server_seconds += time.perf_counter() - before
                for probe in due if result.is_finite else ():
                    share = algorithm.client_weight(result)
                    gathered[probe.name] = probe.accumulate(gathered.get(probe.name), result, server.weights, share)
            trained = time.perf_counter()

            # 4. Aggregate.
            previous = server
            facts: dict[str, Any] = {}
            if acc is not None:
                server, facts = algorithm.finish(server, acc, layout, bench.federation.num_clients)
            aggregated = time.perf_counter()

            # 5. Test the global model.
            metrics = _round_row(round_index, rows, previous, server, bench)
            metrics |= facts
            if round_index % experiment.evaluation.every == 0 or round_index == total:
                tested = algorithm.evaluation_weights(server, layout)
                metrics = {"round": round_index, **_test(executor, bench, identity, tested), **metrics}
            evaluated = time.perf_counter()

            # 6. Record: rows, probes, sinks.
            run.append("clients", rows)
            run.append("metrics", [metrics])
            for probe in due:
                host = ProbeHost(run.probe_path(probe.name), round_index, bench, previous.weights, server.weights)
                probe.record(host, measured[probe.name], gathered.get(probe.name))
            for reporter in reporters:
                reporter.record(metrics)

            # 7. Save the state.
            policy = experiment.checkpoint
            if round_index % policy.every == 0 or round_index in saved_rounds or round_index == total:
                run.write_checkpoint(Checkpoint(round_index, server.weights, layout, server.slots, states.save()))
                run.prune(policy.keep, saved_rounds)
            ended = time.perf_counter()
            timings = {
                "round": round_index,
                "seconds": ended - started,
                "train_seconds": trained - started,
                "client_seconds": client_seconds,  # summed over the clients, wherever they ran
                "server_seconds": server_seconds + aggregated - trained,
                "evaluation_seconds": evaluated - aggregated,
                "record_seconds": ended - evaluated,
                "peak_memory_bytes": devices.peak_memory(),
            }
            run.append("timings", [timings])
            yield RoundRecord(round_index, total, metrics, rows, timings, server.weights)
    finally:
        executor.close()
        for reporter in reporters:
            reporter.close()


def _test(
    executor: executors.Executor, bench: workbench.Workbench, identity: str, weights: np.ndarray
) -> dict[str, Any]:
    slices = bench.evaluator.slices(executor.workers)
    found = []
    for model in np.atleast_2d(weights):
        tasks = [workbench.EvaluationTask(identity, model, *part) for part in slices]
        logits = np.concatenate(list(executor.imap("feddual.training.workbench:answers", tasks)))
        found.append(classification_metrics(logits, bench.evaluator.labels, bench.federation.dataset.num_classes))
    return found[0] if len(found) == 1 else mean_metrics(found)


def worker_view(experiment: Experiment) -> str:
    """The experiment as workers see it: without what concerns only the host, so that their cache is hit."""
    neutral = experiment.model_copy(
        update={
            "probes": [],
            "sinks": [],
            "checkpoint": config.Checkpoint(),
            "name": "run",
            "training": experiment.training.model_copy(update={"rounds": 1}),
        }
    )
    return neutral.to_json()


def check_resumable(asked: Experiment, found: Experiment, path: Path) -> None:
    """Refuse to continue a run with another experiment, naming the differences."""
    before, now = found.to_dict(), asked.to_dict()
    if now["training"]["rounds"] > before["training"]["rounds"]:
        before["training"]["rounds"] = now["training"]["rounds"]
    differences = [
        f"  {key}: the run has {was!r}, asked for {asks!r}" for key, (was, asks) in changes(before, now).items()
    ]
    if differences:
        raise UserError(
            f"--resume: {path} holds a run of another experiment:\n" + "\n".join(differences) + "\n"
            "Only runtime, checkpoint, probes, sinks and a larger training.rounds may change."
        )


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


def _client_row(round_index: int, result: ClientResult) -> dict[str, Any]:
    return {"round": round_index, **result.metrics, "finite": result.is_finite}


def _round_row(
    round_index: int,
    rows: list[dict[str, Any]],
    before: ServerState,
    after: ServerState,
    bench: workbench.Workbench,
) -> dict[str, Any]:
    """What is recorded of a round for every algorithm."""
    layout = bench.network.layout
    good = [row for row in rows if row["finite"]]
    norms = layer_norms(layout, update(after.weights, before.weights))
    down, up = bench.algorithm.communication(layout)

    def mean(key: str) -> float | None:
        return float(np.mean([row[key] for row in good])) if good and good[0][key] is not None else None

    return {
        "round": round_index,
        "train_loss": mean("train_loss"),
        "train_accuracy": mean("train_accuracy"),
        "num_clients": len(rows),
        "num_set_aside": len(rows) - len(good),
        "num_examples": sum(row["num_examples"] for row in rows),
        "steps": sum(row["steps"] for row in rows),
        "bytes_down": 4 * down * len(rows),
        "bytes_up": 4 * up * len(rows),
        "update_norm": float(np.sqrt(sum(norm**2 for norm in norms.values()))),
        "update_norms": norms,
        **{name: mean(name) for name in bench.algorithm.epoch_facts if good and name in good[0]},
    }
