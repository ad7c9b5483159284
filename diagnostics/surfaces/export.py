"""A surface in the formats of other tools: ParaView (.vtp), Blender (.obj), Li et al.'s HDF5, tables, a web page."""

import html
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pandas as pd

from diagnostics.surfaces.results import Surface
from feddual.errors import UserError
from feddual.records.run_dir import atomic_write
from figures.charts.scale import Scale, shared_scale

FORMATS = ("vtp", "obj", "h5", "csv", "html")


def export(surface: Surface, to: str, path: Path, log: bool = True, cap: float | None = None) -> Path:
    """Write a surface.

    Args:
        surface: Finished or not; meshes leave out the cells around points that are not computed.
        to: vtp, obj, h5 (the layout of Li et al., 2018), csv or html.
        path: The file.
        log: Heights of vtp and obj are log10 of the loss, where all are positive.
        cap: The largest loss of vtp, obj and html.
    """
    if to not in FORMATS:
        raise UserError(f"--to: {to!r} is unknown; allowed: {', '.join(FORMATS)}")
    path = Path(path)
    if to == "csv":
        atomic_write(path, _csv(surface).encode())
    elif to == "h5":
        _h5(surface, path)
    elif to == "html":
        atomic_write(path, _html(surface, cap).encode())
    else:
        scale = shared_scale([surface.loss], cap, log=log)
        points, cells = _mesh(surface, scale)
        text = _obj(points, cells) if to == "obj" else _vtp(surface, scale, points, cells)
        atomic_write(path, text.encode())
    return path


def _csv(surface: Surface) -> str:
    """A row per point: alpha, beta, loss, its standard error, accuracy, samples, the loss of each class."""
    classes = [f"class_{number}_loss" for number in range(surface.class_loss.shape[-1])]
    at = np.nonzero(surface.computed)
    columns = {"alpha": surface.alphas[at[1]], "beta": surface.betas[at[0]]}
    columns |= {name: getattr(surface, name)[at].astype(float) for name in ("loss", "sem", "accuracy")}
    by_class = zip(classes, surface.class_loss[at].astype(float).T, strict=True)
    columns |= {"samples": surface.samples[at], **dict(by_class)}
    return pd.DataFrame(columns).to_csv(index=False, na_rep="nan", lineterminator="\n")


def _h5(surface: Surface, path: Path) -> None:
    """The arrays of Li et al.'s tool; its [x, y] order, and -1 (its "not computed") only where that is so."""
    try:
        import h5py
    except ImportError as error:
        raise UserError("--to h5 needs the package h5py: pip install h5py") from error
    partial = path.with_name(f".{path.name}.partial")
    partial.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(partial, "w") as file:
        file["xcoordinates"] = surface.alphas
        file["ycoordinates"] = surface.betas
        part = "test" if surface.meta["facts"].get("split") == "test" else "train"
        file[f"{part}_loss"] = np.where(surface.computed, surface.loss, -1.0).T
        file[f"{part}_acc"] = np.where(surface.computed, 100 * surface.accuracy, -1.0).T
        file["computed"] = surface.computed.T
        file["sem"] = surface.sem.T
        file.attrs["weights"] = surface.meta["identity"]["weights"]
        file.attrs["directions"] = surface.meta["identity"]["directions"]
    partial.replace(path)


def _html(surface: Surface, cap: float | None) -> str:
    """One page that needs no network: the interactive picture and its caption."""
    page = surface.plot3d(cap=cap).to_html(include_plotlyjs=True, full_html=True)
    note = f"<p style='max-width:60em;margin:1em auto;font-family:sans-serif'>{html.escape(surface.caption())}</p>"
    return page.replace("</body>", f"{note}</body>")


# --- meshes ---------------------------------------------------------------------------------------------------------


def _mesh(surface: Surface, scale: Scale) -> tuple[np.ndarray, np.ndarray]:
    """Points (n, 3), row by row, and the quadrilaterals between computed ones (m, 4), seen from above anticlockwise."""
    heights = np.log10(scale.clip(surface.loss)) if scale.log else scale.clip(surface.loss)
    x, y = np.meshgrid(surface.alphas, surface.betas)
    points = np.stack([x, y, heights], -1).reshape(-1, 3)
    number = np.arange(x.size).reshape(x.shape)
    cells = np.stack([number[:-1, :-1], number[:-1, 1:], number[1:, 1:], number[1:, :-1]], -1).reshape(-1, 4)
    return points, cells[surface.computed.ravel()[cells].all(1)]


def _obj(points: np.ndarray, cells: np.ndarray) -> str:
    lines = ["# a loss surface: x = alpha, y = beta, z = height"]
    lines += [f"v {x:.9g} {y:.9g} {z:.9g}" for x, y, z in points]
    lines += ["f " + " ".join(str(corner + 1) for corner in cell) for cell in cells]
    return "\n".join(lines) + "\n"


def _vtp(surface: Surface, scale: Scale, points: np.ndarray, cells: np.ndarray) -> str:
    """Readers refuse `nan` and `inf`: such a loss lies on the scale's rim, others are 0; `computed`, `finite` tell."""
    root = ET.Element("VTKFile", type="PolyData", version="0.1", byte_order="LittleEndian")
    piece = ET.SubElement(
        ET.SubElement(root, "PolyData"), "Piece",
        NumberOfPoints=str(len(points)), NumberOfVerts="0", NumberOfLines="0", NumberOfStrips="0",
        NumberOfPolys=str(len(cells)),
    )  # fmt: skip

    def array(parent: ET.Element, name: str, values: np.ndarray, kind: str = "Float32", components: int = 1) -> None:
        element = ET.SubElement(
            parent, "DataArray", type=kind, Name=name, NumberOfComponents=str(components), format="ascii"
        )
        element.text = " ".join(f"{value:.9g}" for value in np.ravel(values))  # booleans as 0 and 1

    data = ET.SubElement(piece, "PointData", Scalars="loss")
    finite = np.isfinite(surface.loss)
    array(data, "loss", np.where(finite, surface.loss, scale.clip(surface.loss)))
    for name in ("sem", "accuracy"):
        array(data, name, np.nan_to_num(getattr(surface, name), posinf=0.0, neginf=0.0))
    array(data, "computed", surface.computed, "UInt8")
    array(data, "finite", finite, "UInt8")
    array(ET.SubElement(piece, "Points"), "points", points, components=3)
    polygons = ET.SubElement(piece, "Polys")
    array(polygons, "connectivity", cells, "Int32")
    array(polygons, "offsets", np.arange(4, 4 * len(cells) + 1, 4), "Int32")
    return '<?xml version="1.0"?>\n' + ET.tostring(root, encoding="unicode") + "\n"
