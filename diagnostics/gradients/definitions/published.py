"""G: the gradient the public FedDUAL code takes."""

from diagnostics.gradients.contract import Definition

DEFINITION = Definition(
    "G", "||n_k grad F_k(w_k)||, the sum over all the client's data: the public code's",
    "a backward pass over all the client's data; scales with n_k",
    at_client=lambda client: client.num_examples * client.groups.norms(client.gradient()), at_local=True,
)  # fmt: skip
