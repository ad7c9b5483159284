"""Where FedDUAL's gain comes from: each half alone, both, neither, and damping in place of them.

Runs of one draw and seed are compared, so that what is left is the part that was changed. The authors' setting.
"""

from pathlib import Path

from figures._results import Drawing, Results
from figures._rows import AUTHORS_NOTE, DATASETS
from figures.paper import _paired

TITLE = "Which half of FedDUAL helps: test accuracy (%) and gain over neither half (points)"
ROWS = {
    "neither": "neither (FedAvg)",
    "adaptive": "adaptive loss alone",
    "barycenter": "barycenter alone",
    "both": "both: FedDUAL",
    "mean": "both, with the mean for the barycenter",
    "damping": "damping alone: half a step of the output layer's mean",
}
WHOLE = {"neither": "fedavg", "both": "feddual"}  # rows of Table 1
NOTES = (
    "Mean ± sample standard deviation over runs (their number), each with its own draw of the clients or seed; gain: "
    "mean of the runs' differences from neither, with its 95 % interval over draws and seeds.",
    f"In {AUTHORS_NOTE}.",
)


def draw(runs: Results, out: Path) -> Drawing:
    """Write halves_table.md, .tex and .csv."""
    parts = runs.of_study("halves")
    found = {
        (dataset, row): runs.of(dataset, WHOLE[row]) if row in WHOLE else parts[f"paper-{dataset}", row]
        for dataset in DATASETS
        for row in ROWS
    }
    return _paired.write("halves_table", TITLE, ROWS, "neither", found, NOTES, out)
