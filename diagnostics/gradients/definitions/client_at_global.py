"""A: what each client's gradient is at the model it is given."""

from diagnostics.gradients.contract import Definition

DEFINITION = Definition(
    "A", "||g_k||: heterogeneity as the global model sees it, before local steps",
    "a backward pass over the probe set of each client",
    at_client=lambda client: client.groups.norms(client.halves.mean),
)  # fmt: skip
