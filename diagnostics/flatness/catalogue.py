"""The measures of sharpness by name: what each is, what leaves it alone, what it costs, and which a budget has."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from diagnostics.flatness import ascents, averages, spectral
from diagnostics.flatness.around import GRADIENT, PRODUCT, SAMPLES, Around
from diagnostics.flatness.measures import RADII
from diagnostics.flatness.readings import Found, Settings
from feddual.errors import UserError

TIERS = ("cheap", "default", "full")
DIRECTIONS = {"cheap": 5, "default": 10, "full": 20}


@dataclass(frozen=True)
class Measure:
    """A number of the table.

    Args:
        formula: What it is.
        layers: Whether rescaling whole layers of a ReLU network, which leaves its function alone, leaves it alone too.
        nodes: The same of single units.
    """

    formula: str
    layers: bool
    nodes: bool


MEASURES = {
    "gradient_norm": Measure("‖g‖", False, False),
    "kappa_fn": Measure("E[dᵀ H d] of filter-normalised d, by second differences", True, False),
    "r_tau": Measure("sup{r: Δ(r) ≤ τ}; larger is flatter", True, False),
    "average_adaptive": Measure("E ½[L(w + δ) + L(w − δ)] − L(w), δ ~ N(0, ρ² w²)", True, True),
    "sam": Measure("L(w + ρ g / ‖g‖) − L(w)", False, False),
    "asam": Measure("L(w + ρ T² g / ‖T g‖) − L(w), T = |w|", True, True),
    "asam_filter": Measure("the same, T = ‖w_f‖ / √n_f of each filter", True, False),
    "kappa_fn_trace": Measure("tr(S H S), S = ‖w_f‖ / √n_f, by Hutch++", True, False),
    "lambda_fn": Measure("λ_max(S H S)", True, False),
    "worst_adaptive_l2": Measure("max of L(w + δ) − L(w) over ‖δ / |w|‖₂ ≤ ρ", True, True),
    "worst_adaptive_linf": Measure("max of L(w + δ) − L(w) over |δ_i| ≤ ρ |w_i|", True, True),
    "lambda_1": Measure("λ_max(H)", False, False),
    "lambda_ratio": Measure("λ_1 / λ_5 of H", False, False),
    "trace": Measure("tr H", False, False),
    "trace_per_weight": Measure("tr H / n", False, False),
    "keskar": Measure("100 (max L(w + y) − L(w)) / (1 + L(w)) over |y_i| ≤ ε (|w_i| + 1)", False, False),
    "magnitude_sigma": Measure("largest σ with E accuracy(w + u) ≥ accuracy(w) − 0.1; larger is flatter", True, True),
}


@dataclass(frozen=True)
class Gauge:
    """What is measured together.

    Args:
        run: Measures it.
        tier: The cheapest budget that has it.
        passes: What it takes at most, from settings and the share of the samples that a worst case is looked for on.
    """

    run: Callable[[Around, Settings], Found]
    tier: str
    passes: Callable[[Settings, float], float]


# In the order in which a budget of passes is spent.
GROUPS: Mapping[str, Gauge] = {
    "kappa_fn": Gauge(averages.kappa_fn, "cheap", lambda s, few: 3 * s.directions),
    "profile": Gauge(averages.profile, "cheap", lambda s, few: (2 * len(RADII) - 1) * s.directions),
    "average_adaptive": Gauge(
        averages.average_adaptive, "cheap", lambda s, few: (2 * len(s.average) + 1) * s.directions
    ),
    "sam": Gauge(ascents.sam, "cheap", lambda s, few: 2 * len(s.sam)),
    "asam": Gauge(ascents.asam, "cheap", lambda s, few: 2 * len(s.asam)),
    "asam_filter": Gauge(ascents.asam_filter, "cheap", lambda s, few: 2 * len(s.asam)),
    "lambda_fn": Gauge(spectral.lambda_fn, "default", lambda s, few: PRODUCT * s.lanczos),
    "kappa_fn_trace": Gauge(spectral.kappa_fn_trace, "default", lambda s, few: PRODUCT * s.products),
    "worst_adaptive_l2": Gauge(
        ascents.worst_adaptive_l2, "default", lambda s, few: few * _climbs(len(s.worst_l2), s.steps)
    ),
    "worst_adaptive_linf": Gauge(
        ascents.worst_adaptive_linf, "default", lambda s, few: few * _climbs(len(s.worst_linf), s.steps)
    ),
    "lambda_1": Gauge(spectral.lambda_1, "default", lambda s, few: PRODUCT * s.lanczos),
    "trace": Gauge(spectral.trace, "default", lambda s, few: PRODUCT * s.products),
    "keskar": Gauge(
        ascents.keskar,
        "full",
        lambda s, few: few * (GRADIENT + len(s.keskar) * (1 + GRADIENT * (2 * s.iterations + 20))),
    ),
    "magnitude_sigma": Gauge(
        averages.magnitude_sigma,
        "full",
        lambda s, few: s.directions * (1 + averages.DOUBLINGS + averages.HALVINGS),
    ),
}
ALWAYS = GRADIENT + 1  # passes for the loss at the model and its gradient


def _climbs(radii: int, steps: int) -> int:
    return GRADIENT + radii * (GRADIENT * (steps + 1) + 1)


def chosen(
    measures: str | Sequence[str], budget: str | float, settings: Settings, samples: int
) -> tuple[list[str], dict[str, str]]:
    """The groups that run, in order, and why others do not.

    Args:
        measures: `default` for what the budget has, or names of groups.
        budget: A tier, or a number of passes over the data.
        settings: How they are taken.
        samples: How many the loss is the mean over.

    Returns:
        Names, and the reason for each that is left out.

    Raises:
        UserError: For unknown names.
    """
    is_named = not isinstance(measures, str)
    if not is_named and measures != "default":
        measures, is_named = [str(measures)], True
    names = [str(name) for name in measures] if is_named else list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        raise UserError(f"measures: {', '.join(unknown)} unknown; allowed: default, {', '.join(GROUPS)}")
    if isinstance(budget, str):
        if budget not in TIERS:
            raise UserError(f"budget: {budget!r} is unknown; allowed: {', '.join(TIERS)}, or a number of passes")
        if is_named:
            return names, {}
        rank = TIERS.index(budget)
        out = [name for name in names if TIERS.index(GROUPS[name].tier) > rank]
        reasons = {name: f"only with budget={GROUPS[name].tier}" for name in out}
        return [name for name in names if name not in out], reasons
    left, few = float(budget) - ALWAYS, min(SAMPLES, samples) / samples
    if left < 0:
        raise UserError(f"budget: the loss and its gradient alone take {ALWAYS} passes, got {budget:g}")
    kept, reasons = [], {}
    for name in names:
        cost = GROUPS[name].passes(settings, few)
        if cost <= left:
            kept.append(name)
            left -= cost
        else:
            reasons[name] = f"takes up to {cost:.0f} passes of {budget:g}"
    return kept, reasons
