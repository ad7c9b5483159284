"""diagnostics.Curvature on the same network, one thread; a spectrum of it at the end."""

import sys
import time

import numpy as np
from _model import lenet5, tell, wait_for_turn

from diagnostics.landscape import Landscape
from feddual import devices
from feddual._lazy import keras

devices.configure()
work = np.load(sys.argv[1])
model = lenet5(keras)
model.set_weights([work[f"w{number}"] for number in range(10)])
landscape = Landscape(model, work["x"], work["y"], images=None, loss="crossentropy", batch_size=int(work["batch"]))
operators = {kind: landscape.curvature(kind) for kind in ("hessian", "ggn")}
size = operators["hessian"].size
vector = np.random.default_rng(0).normal(size=size)
for operator in operators.values():
    operator.matvec(vector)
while wait_for_turn():
    found = {}
    for name, operator in operators.items():
        wall, cpu = time.perf_counter(), time.process_time()
        operator.matvec(vector)
        found[name] = time.perf_counter() - wall
        found[f"{name}_cpu"] = time.process_time() - cpu
    tell(**found)
answers = {"loss": float(landscape.measures().loss), "weights": size}
for kind in operators:
    spectrum = landscape.spectrum(kind=kind, draws=1, probes=60, progress=False)
    answers[f"{kind}_largest"] = spectrum.largest.tolist()
    answers[f"{kind}_residuals"] = spectrum.largest_residuals.tolist()
    answers[f"{kind}_trace"], answers[f"{kind}_trace_error"] = spectrum.trace.value, spectrum.trace.error
    answers[f"{kind}_cost"] = spectrum.meta["facts"]["cost"]
tell(**answers)
