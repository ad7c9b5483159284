"""Measures a spectrum, part by part into a folder: a kill loses at most the part it was in.

Ends: Lanczos' method on from the density's first draw, until the residuals are small, then again in the complement.
Trace: Hutch++. Density: Lanczos' quadrature, a run of `steps` products for each random start.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diagnostics.curvature import lanczos, traces
from diagnostics.curvature.operator import Curvature
from diagnostics.curvature.spectrum import ARRAYS, Spectrum
from diagnostics.progress import PointProgress
from diagnostics.surfaces.measure import versions
from feddual.errors import UserError
from feddual.functional.layout import fingerprint
from feddual.records import measurements as store

if TYPE_CHECKING:
    from diagnostics.landscape import Landscape

ENDS = ("largest", "largest_residuals", "smallest", "smallest_residuals")
FEWEST = 10  # steps, below which neither ends nor density say anything


@dataclass(frozen=True)
class Effort:
    """How many products go where.

    Args:
        k: Eigenvalues at each end.
        steps: Lanczos steps of each draw.
        draws: Random starts of the density.
        probes: Products for the trace, a third of them samples.
        tolerance: Of the eigenvalues' residuals, relative to the largest.
        layerwise: Whether each layer's largest eigenvalue is looked for, by `steps` products each.
    """

    k: int = 5
    steps: int = 80
    draws: int = 10
    probes: int = 99
    tolerance: float = lanczos.TOLERANCE
    layerwise: bool = False

    def checked(self) -> "Effort":
        """The same, if it can be done."""
        for name, least in (("k", 1), ("steps", 2), ("draws", 1), ("probes", traces.FEWEST)):
            if getattr(self, name) < least:
                raise UserError(f"{name}: must be at least {least}, got {getattr(self, name)}")
        if not 0 < self.tolerance < 1:
            raise UserError(f"tolerance: must be between 0 and 1, got {self.tolerance}")
        return self

    def products(self, layers: int) -> int:
        """At most, where the ends are there after twice the steps: of the first draw, and in its complement."""
        return self.steps * (self.draws + 1 + self.layerwise * layers) + 2 * self.k + self.probes

    def within(self, budget: int | None, layers: int) -> "Effort":
        """As much of it as a number of products allows: first fewer draws, then fewer probes, then fewer steps."""
        if budget is None:
            return self
        found = self
        while found.products(layers) > budget:
            if found.draws > 1:
                found = replace(found, draws=found.draws - 1)
            elif found.probes > 30:
                found = replace(found, probes=max(30, found.probes - 3))
            elif found.steps > FEWEST:
                found = replace(found, steps=found.steps - 1)
            else:
                raise UserError(f"budget: at least {found.products(layers)} products are needed, got {budget}")
        return found


class Measuring:
    """The parts of one spectrum."""

    def __init__(self, landscape: "Landscape", curvature: Curvature, effort: Effort, budget: int | None, seed: int):
        """Args: the landscape, its operator, how much to compute, products at most, of the random vectors."""
        self._landscape, self._curvature, self._budget, self._seed = landscape, curvature, budget, seed
        effort = effort.checked().within(budget, len(curvature.blocks))
        self._effort = replace(effort, k=min(effort.k, curvature.size), steps=min(effort.steps, curvature.size))
        lanczos.check_memory(3 * self._effort.steps, curvature.size)

    def run(self, out: str | os.PathLike[str] | None, progress: bool) -> Spectrum:
        """Compute what is not kept already."""
        identity = self._identity()
        folder = None if out is None else store.Folder(Path(out), ARRAYS)
        if folder is not None and folder.check(identity) is not None and (folder.path / ARRAYS).exists():
            return Spectrum.load(folder.path)
        manifest: dict[str, Any] = {"identity": identity, "facts": self._facts()}
        if folder is None:
            return self._filled(manifest, store.Memory(), progress)
        with folder.locked():
            if folder.check(identity) is None:
                folder.begin(manifest)
            elif (folder.path / ARRAYS).exists():
                return Spectrum.load(folder.path)
            return self._filled(manifest, folder, progress)

    def _identity(self) -> dict[str, Any]:
        """All that determines the numbers."""
        objective, curvature, effort = self._landscape.objective, self._curvature, self._effort
        return {
            "kind": "spectrum", "curvature": curvature.kind, "scale": curvature.scale, "layers": list(curvature.layers),
            "include": list(curvature.include), "weights": fingerprint(self._landscape.weights),
            "data": objective.data_hash, "loss": objective.loss_name, "loss_hash": objective.loss_hash,
            "bn": objective.bn, "batch_size": objective.batch_size, "k": effort.k, "steps": effort.steps,
            "draws": effort.draws, "probes": effort.probes, "tolerance": effort.tolerance,
            "layerwise": effort.layerwise, "budget": self._budget, "seed": self._seed,
        }  # fmt: skip

    def _facts(self) -> dict[str, Any]:
        """What else there is to know of the model."""
        landscape, curvature = self._landscape, self._curvature
        measures = landscape.measures()
        if not np.isfinite(measures.loss):
            raise UserError(f"the loss at the model is {measures.loss}: it has no curvature. Has training diverged?")
        return {
            **landscape.subject.facts, "images": curvature.samples, "loss": float(measures.loss),
            "accuracy": None if np.isnan(measures.accuracy) else float(measures.accuracy),
            "regularisation": landscape.objective.said_of_regularisation,
            "gradient_norm": float(np.linalg.norm(curvature.gradient())), "size": curvature.size,
            "layers": {name: len(where) for name, where in curvature.blocks.items()}, "mode": curvature.mode,
            **versions(),
        }  # fmt: skip

    def _filled(self, manifest: dict[str, Any], target: store.Memory | store.Folder, progress: bool) -> Spectrum:
        effort, curvature = self._effort, self._curvature
        planned = effort.products(len(curvature.blocks))
        label = f"spectrum of {manifest['facts'].get('source', 'the model')}"
        with PointProgress(label, planned, progress, "products") as bar:
            parts = _Parts(self._counted(bar.advance), curvature.size, effort, self._seed, target)
            ends = parts.ends(self._budget and self._budget - planned + 2 * effort.steps + 2 * effort.k)
            trace = parts.trace(curvature.blocks)
            draws = [ends.quadrature, *(parts.draw(number) for number in range(1, effort.draws))]
            tops = [parts.top(name, where) for name, where in curvature.blocks.items()] if effort.layerwise else []
        cost = {name: {"products": int(n), "seconds": round(float(s), 3)} for name, (n, s) in parts.cost.items()}
        done = {
            "products": sum(one["products"] for one in cost.values()) + 1,  # and the gradient
            "seconds": round(sum(one["seconds"] for one in cost.values()), 3), "cost": cost,
            "converged": ends.converged,
        }  # fmt: skip
        manifest = manifest | {"facts": manifest["facts"] | done}
        nodes, weights = (np.stack([one[place] for one in draws]) for place in (0, 1))
        found = Spectrum(
            **ends.values, nodes=nodes, weights=weights, trace_exact=trace[:, 0], trace_samples=trace[:, 1:],
            layer_largest=np.array(tops), meta=manifest,
        )  # fmt: skip
        target.finish(manifest, found.arrays())
        return found

    def _counted(self, advance: Callable[[int], None]) -> Callable[[np.ndarray], np.ndarray]:
        def product(vector: np.ndarray) -> np.ndarray:
            found = self._curvature.matvec(vector)
            if not math.isfinite(float(found.sum())):
                raise UserError("a product with the curvature is not finite: the model's arithmetic overflows")
            advance(1)
            return found

        return product


@dataclass(frozen=True)
class _Ends:
    """Both ends, and the first draw's quadrature."""

    values: dict[str, np.ndarray]
    quadrature: np.ndarray  # (2, steps)
    converged: bool


class _Parts:
    """The parts, from a target where they are there already, with what each cost: products and seconds."""

    def __init__(self, product: Any, size: int, effort: Effort, seed: int, target: Any):
        self._product, self._size, self._effort, self._seed, self._target = product, size, effort, seed, target
        self.cost: dict[str, np.ndarray] = {}

    def ends(self, most: int | None) -> _Ends:
        """Args: products at most."""
        effort = self._effort

        def compute(product: Any) -> np.ndarray:
            run = lanczos.Krylov(product, lanczos.start(self._seed, 0, self._size))
            run.grow(effort.steps)
            first = lanczos.quadrature(run, effort.steps)
            left = None if most is None else most - effort.steps
            found = lanczos.eigenvalues(
                product, self._size, effort.k, effort.steps, self._seed, effort.tolerance, left, run
            )
            return np.concatenate([*found[:4], *first, [found.converged]])

        flat = self._kept("ends", "eigenvalues and a draw of the density", compute)
        k, steps = effort.k, effort.steps
        *values, nodes, weights, converged = np.split(flat, np.cumsum([k, k, k, k, steps, steps]))
        named = dict(zip(ENDS, values, strict=True))
        return _Ends(named, np.stack([nodes, weights]), bool(converged[0]))

    def trace(self, blocks: dict[str, np.ndarray]) -> np.ndarray:
        """The whole's row, then each block's: the exact part, then the samples."""

        def compute(product: Any) -> np.ndarray:
            whole, parts = traces.hutchpp(product, self._size, self._effort.probes, self._seed, blocks)
            return np.stack([np.r_[one.exact, one.samples] for one in (whole, *parts.values())])

        return self._kept("trace", "trace", compute)

    def draw(self, number: int) -> np.ndarray:
        """A draw of the density: nodes and weights, (2, steps)."""

        def compute(product: Any) -> np.ndarray:
            run = lanczos.Krylov(product, lanczos.start(self._seed, number, self._size))
            run.grow(self._effort.steps)
            return np.stack(lanczos.quadrature(run, self._effort.steps))

        return self._kept(f"draw-{number:03d}", "density", compute)

    def top(self, name: str, where: np.ndarray) -> float:
        """The largest eigenvalue of a layer's block."""
        effort = self._effort

        def compute(product: Any) -> np.ndarray:
            def block(vector: np.ndarray) -> np.ndarray:
                whole = np.zeros(self._size)
                whole[where] = vector
                return np.asarray(product(whole)[where])

            run = lanczos.Krylov(block, lanczos.start(self._seed, 0, len(where)))
            run.grow(effort.steps)
            return run.ritz()[0][-1:]

        return float(self._kept(f"layer-{fingerprint(where)[:12]}", "largest eigenvalues of layers", compute)[0])

    def _kept(self, name: str, what: str, compute: Callable[[Any], np.ndarray]) -> np.ndarray:
        """A part; in the file its products and seconds come before its numbers."""
        found = self._target.read(name)
        if found is None:
            products, started = 0, time.perf_counter()

            def product(vector: np.ndarray) -> np.ndarray:
                nonlocal products
                products += 1
                return np.asarray(self._product(vector))

            values = compute(product)
            spent = np.array([products, time.perf_counter() - started, *np.shape(values)])
            found = np.concatenate([[len(spent)], spent, np.ravel(values)])
            self._target.write(name, found)
        head = int(found[0])
        self.cost[what] = self.cost.get(what, np.zeros(2)) + found[1:3]
        return found[head + 1 :].reshape(found[3 : head + 1].astype(int))
