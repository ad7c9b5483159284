"""Principal directions of several weight vectors, through their Gram matrix.

With differences d_t = θ_t − θ_0 from one model, the origin, as rows of D = U S Vᵀ, the axes are the first rows of Vᵀ:
unit vectors in weight space. They come from the small matrix D Dᵀ = U S² Uᵀ, which is added up over blocks of weights
in float64, so D itself is never made. Nothing is centred on a mean: coordinates are projections of d_t, the origin
lies at zero, and a surface along the axes through the origin is drawn in the same units, distances in weight space.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from diagnostics.surfaces.directions import Direction
from feddual.errors import UserError

BLOCK = 1 << 16  # weights at a time
RANK = 1e-12  # a squared length below this share of the largest is rounding


@dataclass(frozen=True)
class Principal:
    """Axes through one model, and where others lie on them.

    Attributes:
        origin: The model at zero, (size,).
        axes: Orthonormal directions over the trained weights, a row each, (axes, trained).
        shares: Of the vectors' summed squared distances from the origin, what each direction holds, largest first;
            all directions there are, so they add up to one.
        coordinates: Of the vectors, (vectors, axes).
        off: Their distances from the space of the axes, (vectors,).
    """

    origin: np.ndarray
    axes: np.ndarray
    shares: np.ndarray
    coordinates: np.ndarray
    off: np.ndarray

    @property
    def directions(self) -> list[Direction]:
        """The axes as directions of a surface; moving statistics stay."""
        still = np.zeros(len(self.origin) - self.axes.shape[1])
        vectors = (np.concatenate([axis, still]).astype(np.float32) for axis in self.axes)
        return [Direction(vector, f"principal direction {place}") for place, vector in enumerate(vectors, 1)]

    def project(self, vectors: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Where other models lie.

        Args:
            vectors: Weights, (size,) each.

        Returns:
            Coordinates, (vectors, axes), and distances from the space of the axes, (vectors,).
        """
        found = np.zeros((len(vectors), len(self.axes)))
        squares = np.zeros(len(vectors))
        for place, vector in enumerate(vectors):
            difference = vector[: self.axes.shape[1]].astype(np.float64) - self.origin[: self.axes.shape[1]]
            found[place], squares[place] = self.axes @ difference, difference @ difference
        return found, _off(squares, found)


def principal(vectors: Sequence[np.ndarray], origin: np.ndarray, trained: int, count: int = 2) -> Principal:
    """The directions along which several models lie furthest from one.

    Args:
        vectors: Weights, (size,) each; read twice, block by block.
        origin: The model at zero, (size,); being one of the vectors, too, it changes nothing.
        trained: How many of the first weights are trained; what follows, moving statistics, does not count.
        count: How many axes.

    Returns:
        The axes; each points to the side where the vector furthest from the origin along it lies.

    Raises:
        UserError: When the vectors do not span so many directions.
    """
    blocks = [slice(begin, min(begin + BLOCK, trained)) for begin in range(0, trained, BLOCK)]
    gram = np.zeros((len(vectors), len(vectors)))
    for block in blocks:
        part = _differences(vectors, origin, block)
        gram += part @ part.T
    if not np.isfinite(gram).all():
        raise UserError("principal directions: the models hold values that are not finite. Has training diverged?")
    values, columns = np.linalg.eigh(gram)
    values, columns = np.maximum(values[::-1], 0), columns[:, ::-1]
    if len(values) < count or values[count - 1] <= RANK * max(values[0], np.finfo(float).tiny):
        raise UserError(
            f"principal directions: {len(vectors)} models span fewer than {count} directions from the origin; "
            "give more of them, or ones that differ"
        )
    lengths, columns = np.sqrt(values[:count]), columns[:, :count]
    signs = np.sign(columns[np.abs(columns).argmax(0), np.arange(count)])
    columns = columns * signs
    axes = np.empty((count, trained))
    for block in blocks:
        axes[:, block] = columns.T @ _differences(vectors, origin, block) / lengths[:, None]
    coordinates = columns * lengths
    off = _off(np.diag(gram), coordinates)
    return Principal(np.asarray(origin, np.float32), axes, values / values.sum(), coordinates, off)


def _differences(vectors: Sequence[np.ndarray], origin: np.ndarray, block: slice) -> np.ndarray:
    return np.stack([vector[block].astype(np.float64) for vector in vectors]) - origin[block]


def _off(squares: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
    """By Pythagoras; below zero by rounding only."""
    return np.asarray(np.sqrt(np.maximum(squares - (coordinates**2).sum(1), 0)))


def extent_around(values: np.ndarray, count: int, margin: float = 0.15) -> tuple[float, float]:
    """The ends of an axis that holds all values with some room, and of whose `count` points one is exactly zero.

    Args:
        values: Coordinates.
        count: Points along the axis, at least 5.
        margin: Room beyond the values, as a share of their span.

    Returns:
        Low and high end.
    """
    if count < 5:
        raise UserError(f"grid: needs at least 5 points along each axis, got {count}")
    low, high = min(0.0, float(values.min())), max(0.0, float(values.max()))
    room = margin * (high - low) or 1.0
    low, high = low - room, high + room
    step = (high - low) / (count - 2)
    below = int(np.ceil(-low / step - 1e-9))
    return -below * step, (count - 1 - below) * step


def extents_around(
    coordinates: np.ndarray, count: int, margin: float = 0.15
) -> tuple[tuple[float, float], tuple[float, float]]:
    """`extent_around` of both axes of a plane.

    Args:
        coordinates: Shape (vectors, 2).
        count: Points along each axis.
        margin: Room beyond the values, as a share of their span.

    Returns:
        Low and high end of the first, and of the second axis.
    """
    return extent_around(coordinates[:, 0], count, margin), extent_around(coordinates[:, 1], count, margin)
