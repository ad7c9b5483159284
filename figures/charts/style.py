"""One colour, marker and label per algorithm, wherever it is drawn.

The colours are told apart with the common kinds of colour blindness (Okabe and Ito's, without yellow, and two of
Tol's); dashes and markers tell the rest.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Look:
    """How something appears, in every panel of every chart.

    Args:
        label: Its name in legends.
        colour: Such as `#0072B2`.
        marker: One of matplotlib's letters: `o s ^ v < > D d P X * h p + |`.
        dash: solid, dashed, dotted or dashdot.
        width: Of lines, in points; markers grow with it.

    >>> from figures import charts
    >>> charts.Look("FedAvg", "#222222").dash
    'solid'
    """

    label: str
    colour: str
    marker: str = "o"
    dash: str = "solid"
    width: float = 1.3


LOOKS = {
    "fedavg": Look("FedAvg", "#222222", "o"),
    "fedprox": Look("FedProx", "#0072B2", "s"),
    "fednova": Look("FedNova", "#E69F00", "^", "dashed"),
    "fedbn": Look("FedBN", "#56B4E9", "v", "dashed"),
    "feddyn": Look("FedDyn", "#009E73", "D"),
    "moon": Look("MOON", "#CC79A7", "P"),
    "scaffold": Look("SCAFFOLD", "#999999", "X", "dashed"),
    "fedpvr": Look("FedPVR", "#882255", "<", "dashdot"),
    "feddual": Look("FedDUAL", "#D55E00", "*", width=2.4),
    "fedavg-nk": Look("FedAvg, by examples", "#222222", "h", "dotted"),
    "fednova-nk": Look("FedNova, by examples", "#E69F00", "p", "dotted"),
    "feddual-literal": Look("FedDUAL, literal", "#332288", "h"),
    "feddual-published": Look("FedDUAL, published", "#117733", ">", "dashed"),
    "feddual-frozen_head": Look("FedDUAL, frozen head", "#56B4E9", "v", "dashdot"),
    "feddual-mean": Look("FedDUAL, mean", "#999999", "d", "dotted", 1.8),
}

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # seen on white and on black pages
ON_WHITE = (*COLOURS, "#222222", "#882255", "#999999")  # nine algorithms, nine colours
DASHES = ("solid", "dashed", "dotted", "dashdot")
MARKERS = "osD^vPX<>"
THIN_MARKERS = "+|"  # strokes without an inside
ELEVATION, AZIMUTH = 32, -58  # degrees: one view of all surfaces

INK = "#333333"
FAINT = "#8A8A8A"
GRID = "#E4E4E4"

PAGE_WIDTH = 10.2  # inches
PANEL_HEIGHT = 2.9
DPI = 160
FONT = "DejaVu Sans"  # comes with matplotlib, so that a picture is the same everywhere

MATPLOTLIB: dict[Any, Any] = {
    "font.family": FONT, "font.size": 9, "text.color": INK,
    "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlecolor": INK,
    "axes.titley": 1.0,  # no looking for ticks above, which is slow
    "axes.labelsize": 9, "axes.labelcolor": INK, "axes.edgecolor": FAINT, "axes.spines.top": False,
    "axes.spines.right": False, "axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.7,
    "xtick.color": FAINT, "xtick.labelcolor": INK, "xtick.labelsize": 8,
    "ytick.color": FAINT, "ytick.labelcolor": INK, "ytick.labelsize": 8,
    "legend.frameon": False, "legend.fontsize": 8.5, "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,  # fonts that a reader can edit
    "figure.dpi": DPI, "savefig.dpi": DPI,
}  # fmt: skip


def look(number: int, label: str) -> Look:
    """The look of the so-manieth of several without a look of their own: all colours first, then all of them dashed.

    Args:
        number: From 0.
        label: Its name in legends.

    Returns:
        A look that no other number below 36 has.

    >>> from figures import charts
    >>> charts.look(1, "skewed").colour
    '#D55E00'
    """
    colours, dashes = len(ON_WHITE), len(DASHES)
    return Look(label, ON_WHITE[number % colours], MARKERS[number % colours], DASHES[number // colours % dashes])


def paler(colour: str, number: int) -> str:
    """The colour of a row's series: the first in full, the others mixed with white, so that no grid shines through."""
    share = 1.0 if number == 0 else 0.4
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02X}" for part in parts)
