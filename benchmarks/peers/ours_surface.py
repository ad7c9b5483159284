"""diagnostics.loss_surface on the same plane, one process (surface-1) or two workers of one thread (surface-2)."""

import sys
import time

import numpy as np
from _model import initial_weights, lenet5, tell, wait_for_turn

from diagnostics.landscape import loss_surface
from feddual import devices
from feddual._lazy import keras

devices.configure()
work, name = np.load(sys.argv[1]), sys.argv[2]
model = lenet5(keras)
model.set_weights(initial_weights(keras))
while wait_for_turn():
    started = time.perf_counter()
    surface = loss_surface(
        model, work["x"], work["y"], grid=int(work["side"]), images=None, progress=False,
        workers=2 if name == "surface-2" else 1,
    )  # fmt: skip
    facts = surface.meta["facts"]
    tell(
        seconds=time.perf_counter() - started,
        points=int(surface.loss.size),
        # `seconds` is the whole call; this leaves out compiling and the check, but not the start of workers.
        seconds_per_point=facts["seconds"] / surface.loss.size,
        engine=facts["engine"],
        check=facts["check"],
    )
tell(loss=facts["loss"])
