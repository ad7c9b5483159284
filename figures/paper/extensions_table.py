"""Beyond the paper, on held-out training data: is there a FedDUAL that leads at equal communication, or at half?

A server that tests a moving average of its models or steps with Adam, FedDUAL with a memory of all clients' last
displacements (no more communication), FedDUAL with SCAFFOLD's control variates (twice as much).
"""

from pathlib import Path

from figures._results import Drawing, Results
from figures._rows import DATASETS
from figures.paper import _paired

TITLE = "Beyond the paper: accuracy on held-out training data (%) and gain over FedAvg (points)"
ROWS = {
    "fedavg": "FedAvg",
    "fedavg-ema": "FedAvg, moving average tested (0.8)",
    "fedavg-fedadam": "FedAvg, Adam at the server (0.003)",
    "feddual": "FedDUAL",
    "feddual-ema": "FedDUAL, moving average tested (0.8)",
    "feddual-memory": "FedDUAL with memory",
    "memory": "memory alone, neither half",
    "feddual-control": "FedDUAL with control variates, 3e-4 (twice the communication)",
    "scaffold": "SCAFFOLD, 1e-4 (twice the communication)",
}
NOTES = (
    "Mean ± sample standard deviation over runs (their number), each with its own draw of the clients or seed; gain: "
    "mean of the runs' differences from FedAvg, with its 95 % interval over draws and seeds. Raw pixels, Adam 1e-3 "
    "where nothing else is said; a tenth of the training data held out, the test data unopened.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write extensions_table.md, .tex and .csv."""
    names = {f"paper-{dataset}": dataset for dataset in DATASETS}
    found = {(names[source], row): several for (source, row), several in runs.of_study("extensions").items()}
    return _paired.write("extensions_table", TITLE, ROWS, "fedavg", found, NOTES, out)
