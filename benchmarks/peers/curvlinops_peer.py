"""curvlinops 3.0.1 on PyTorch: products with Hessian and GGN, top eigenvalues by SciPy, its own Hutch++."""

import sys
import time

import curvlinops
import numpy as np
import torch
from _model import tell, wait_for_turn
from scipy.sparse.linalg import LinearOperator, eigsh

work = np.load(sys.argv[1])
torch.set_num_threads(1)
nn = torch.nn
model = nn.Sequential(
    nn.Conv2d(1, 6, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
    nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
)  # fmt: skip


def converted(number, values):
    """A Keras weight as PyTorch has it; the first dense layer's inputs come by channel, not by place."""
    if values.ndim == 4:
        return values.transpose(3, 2, 0, 1)
    if values.ndim == 2:
        if number == 4:
            values = values.reshape(4, 4, 16, -1).transpose(2, 0, 1, 3).reshape(256, -1)
        return values.T
    return values


with torch.no_grad():
    for number, parameter in enumerate(model.parameters()):
        parameter.copy_(torch.from_numpy(converted(number, work[f"w{number}"]).copy()))
x = torch.from_numpy(work["x"].transpose(0, 3, 1, 2).copy())
y = torch.from_numpy(work["y"].astype(np.int64))
batch = int(work["batch"])
data = [(x[begin : begin + batch], y[begin : begin + batch]) for begin in range(0, len(x), batch)]
parameters = list(model.parameters())
classes = {"hessian": curvlinops.HessianLinearOperator, "ggn": curvlinops.GGNLinearOperator}
operators = {
    name: made(model, nn.CrossEntropyLoss(), parameters, data, check_deterministic=False)
    for name, made in classes.items()
}
size = sum(parameter.numel() for parameter in parameters)
torch.manual_seed(0)
vector, block = torch.randn(size), torch.randn(size, 8)
for operator in operators.values():
    operator @ vector
while wait_for_turn():
    found = {}
    for name, operator in operators.items():
        for label, what, count in (("", vector, 1), ("_block", block, 8)):
            wall, cpu = time.perf_counter(), time.process_time()
            operator @ what
            found[f"{name}{label}"] = (time.perf_counter() - wall) / count
            found[f"{name}{label}_cpu"] = (time.process_time() - cpu) / count
    tell(**found)
answers = {"torch": torch.__version__}
with torch.no_grad():
    answers["loss"] = float(nn.CrossEntropyLoss()(model(x), y))
for name, operator in operators.items():
    as_scipy = LinearOperator(
        (size, size), dtype=np.float32, matvec=lambda v, o=operator: (o @ torch.from_numpy(v.astype("f4"))).numpy()
    )
    values = eigsh(as_scipy, k=5, which="LA", tol=1e-5, return_eigenvectors=False)
    answers[f"{name}_largest"] = sorted(map(float, values), reverse=True)
    estimates = [float(curvlinops.hutchpp_trace(operator, 30)) for _ in range(4)]
    answers[f"{name}_trace"] = float(np.mean(estimates))
    answers[f"{name}_trace_error"] = float(np.std(estimates, ddof=1) / 2)
tell(**answers)
