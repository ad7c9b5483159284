"""Charts of curvature: spectral densities of several models on one axis, with the ends of their spectra."""

import html as markup
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from diagnostics.curvature.spectrum import axis
from diagnostics.statistics import said
from figures.charts.describe import Chart, Line, Panel, Points
from figures.charts.style import look

DEEP = 1e-2  # of one eigenvalue: what lies below the density of so little is a Gaussian's tail, not the model's

WORDS = {"hessian": "Hessian", "ggn": "GGN"}
SCALED = {"none": "", "filter": "filter-scaled ", "abs": "|w|-scaled "}


def what(spectrum: Any) -> str:
    """Of which matrix it is."""
    identity = spectrum.meta["identity"]
    return f"{SCALED[identity['scale']]}{WORDS[identity['curvature']]}"


def plot_spectra(spectra: Any | Mapping[str, Any], *, sigma: float | None = None) -> Chart:
    """Spectral densities, log-y, all on one axis and smoothed by one σ; the ends as marks at the bottom.

    Args:
        spectra: `diagnostics.Spectrum`, or several by name.
        sigma: The Gaussians' standard deviation; by default the largest of the models' own.

    Returns:
        One panel.
    """
    named = dict(spectra) if isinstance(spectra, Mapping) else {"": spectra}
    shown = list(named.values())
    sigma = max(one.width for one in shown) if sigma is None else sigma
    x = axis(shown, sigma)
    largest = max(one.meta["facts"]["size"] for one in shown)
    floor = DEEP / largest / (sigma * np.sqrt(2 * np.pi))
    marks: list[Any] = []
    for number, (name, one) in enumerate(named.items()):
        style = replace(look(number, _label(name, one)), width=1.6)
        heights = one.density(x, sigma)[1]
        marks.append(Line(style, x, np.where(heights > floor, heights, np.nan), marked=False))
        ends = np.unique(np.concatenate([one.largest, one.smallest]))
        place = np.full(len(ends), floor * 2.5 ** (number + 0.7))
        told = [f"{name} λ = {value:.4g}".strip() for value in ends]
        marks.append(Points(replace(style, label=""), ends, place, told=told))
    first = shown[0]
    note = (
        f"σ = {sigma:.2g}, {first.nodes.shape[0]} draws of {first.nodes.shape[1]} steps; marks: the "
        f"{len(first.largest)} largest and smallest eigenvalues"
    )
    kinds = " and ".join(dict.fromkeys(what(one) for one in shown))
    panel = Panel(
        "", f"eigenvalue λ of the {kinds}", "density", marks, y_scale="log", note=note, upright=0,
        y_range=(floor, 3 * max(float(np.nanmax(mark.y)) for mark in marks if isinstance(mark, Line))),
    )  # fmt: skip
    return Chart([panel], 1, panel_height=3.8, width=7.0)


def _label(name: str, spectrum: Any) -> str:
    facts = (
        f"λ1 {spectrum.largest[0]:.3g}, tr {_trace(spectrum, '.3g')}, ‖g‖ {spectrum.meta['facts']['gradient_norm']:.2g}"
    )
    return f"{name}: {facts}" if name else facts


def _trace(spectrum: Any, form: str = ".4g") -> str:
    mean, low, high = spectrum.trace.interval().floats()
    return said(mean, low, high, form)


def captions(named: Mapping[str, Any]) -> str:
    """The caption of a picture of several spectra."""
    return "\n".join(f"{name}: {caption(one)}" if name else caption(one) for name, one in named.items())


def caption(spectrum: Any) -> str:
    """The facts of a spectrum, in sentences for the text below a figure."""
    identity, facts = spectrum.meta["identity"], spectrum.meta["facts"]
    model = facts.get("source", "the model")
    if "round" in facts:
        model += f" ({facts['algorithm']} on {facts['dataset']}) after round {facts['round']}"
    split = {"train": "training", "test": "test", "given": "given"}.get(facts.get("split", ""), "")
    penalties = identity["curvature"] == "hessian" and facts.get("regularisation") == "included"
    without = ", without the layers' regularisation" * (facts.get("regularisation") != "none" and not penalties)
    layers = f" of {' and '.join(identity['layers'])}" if identity["layers"] else ""
    ratio = "" if np.isnan(spectrum.ratio) else f", λ1/λ5 {spectrum.ratio:.3g}"
    sentences = [
        f"Spectrum of the {what(spectrum)}{layers} ({facts['size']} weights) of {model}; {identity['loss']}{without}, "
        f"mean of {facts['images']} {split} samples.",
        f"Largest eigenvalue {spectrum.largest[0]:.4g} (residual {spectrum.largest_residuals[0]:.1g}){ratio}; smallest "
        f"{spectrum.smallest[0]:.4g} (residual {spectrum.smallest_residuals[0]:.1g}).",
        f"Trace {_trace(spectrum)} (95 %, Student's t over {spectrum.trace_samples.shape[1]} samples of Hutch++).",
        f"Loss {facts['loss']:.4g}, gradient norm {facts['gradient_norm']:.2g}; {facts['products']} products over the "
        f"samples in {facts['seconds']:.0f} s.",
        f"Moving statistics: {identity['bn']}. Weights {identity['weights'][:8]}, data {identity['data'][:8]}.",
    ]
    if identity["curvature"] == "ggn":
        sentences.insert(1, "The GGN knows neither the network's own curvature nor regularisation.")
    if not facts["converged"]:
        sentences.insert(-3, "Not all of these eigenvalues have converged.")
    if identity["scale"] == "none":
        sentences.append("Not invariant: rescaling the layers of a ReLU network changes it, though not the model.")
    return " ".join(sentences)


def html(spectrum: Any) -> str:
    """The picture and its caption, for a notebook."""
    picture = plot_spectra(spectrum)._repr_mimebundle_()["image/png"]
    return (
        f"<figure><img src='data:image/png;base64,{picture}' alt='spectral density'>"
        f"<figcaption style='max-width:60em'>{markup.escape(caption(spectrum))}</figcaption></figure>"
    )


def text(named: Mapping[str, Any]) -> str:
    """A table for a terminal: the numbers of each, and below it those of its layers."""
    width = max(map(len, ("run", *named))) + 2
    lines = [
        f"{'run':<{width}}{'λ1':>10}{'λ1/λ5':>8}{'λ min':>11}{'‖g‖':>10}{'loss':>9}{'products':>9}  trace [95 %]",
    ]
    for name, one in named.items():
        facts = one.meta["facts"]
        ratio = "–" if np.isnan(one.ratio) else f"{one.ratio:.2f}"
        lines.append(
            f"{name:<{width}}{one.largest[0]:>10.4g}{ratio:>8}{one.smallest[0]:>11.4g}{facts['gradient_norm']:>10.3g}"
            f"{facts['loss']:>9.4g}{facts['products']:>9}  {_trace(one)}"
            + ("" if facts["converged"] else "  (eigenvalues not converged)")
        )
    for name, one in named.items():
        table = one.per_layer()
        room = max(map(len, table["layer"])) + 2
        lines += ["", f"{name}, layer by layer"]
        for row in table.to_dict("records"):
            top = "" if np.isnan(row["lambda_1"]) else f"  λ1 {row['lambda_1']:.4g}"
            trace = said(row["trace"], row["trace_low"], row["trace_high"], form=".4g")
            lines.append(
                f"  {row['layer']:<{room}}{row['weights']:>9} weights  trace {trace} ({row['share']:.0%}){top}"
            )
    return "\n".join(lines)
