"""loss-landscapes 3.0.6: `random_plane` with filter normalisation, all images as one batch, two threads of PyTorch."""

import sys
import time

import loss_landscapes
import loss_landscapes.metrics
import numpy as np
import torch
from _model import tell, wait_for_turn

work = np.load(sys.argv[1])
torch.set_num_threads(2)
nn = torch.nn
model = nn.Sequential(
    nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
)  # fmt: skip
x = torch.from_numpy(work["x"].transpose(0, 3, 1, 2).copy())
y = torch.from_numpy(work["y"].astype(np.int64))
metric = loss_landscapes.metrics.Loss(nn.CrossEntropyLoss(), x, y)
side = int(work["side"])
while wait_for_turn():
    started = time.perf_counter()
    with torch.no_grad():
        plane = loss_landscapes.random_plane(
            model, metric, distance=1, steps=side, normalization="filter", deepcopy_model=True
        )
    seconds = time.perf_counter() - started
    tell(seconds=seconds, points=int(np.size(plane)), seconds_per_point=seconds / np.size(plane))
tell(torch=torch.__version__)
