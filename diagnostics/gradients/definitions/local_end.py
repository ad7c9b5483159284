"""F: what local training has left of a client's own gradient."""

from diagnostics.gradients.contract import Definition

DEFINITION = Definition(
    "F", "||grad F_k(w_k)||: what is left of the client's own gradient", "a backward pass over the probe set",
    at_client=lambda client: client.groups.norms(client.gradient(client.probe_set)), at_local=True,
)  # fmt: skip
