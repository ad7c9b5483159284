"""B: the gradient of all clients together."""

from diagnostics.gradients.contract import Definition, gradient

DEFINITION = Definition(
    "B", "||sum_k p_k g_k||: progress of the optimisation", "with A",
    of_all=lambda seen: seen.groups.norms(seen.mean_gradient), sends=gradient, shares="client_at_global", place=1,
)  # fmt: skip
