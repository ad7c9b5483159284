"""Communication-Efficient Learning of Deep Networks from Decentralized Data.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas, AISTATS 2017, https://arxiv.org/abs/1602.05629 (Algorithm 1).

    client k:  y_k = x, then E epochs of SGD on the mean cross-entropy of its data
    server:    x <- sum_k p_k y_k over the round's clients, p_k = n_k / sum n (num_examples) or 1 / K (uniform)

Differences from the paper: the weights p_k are normalised over the clients of the round, not over all clients;
the local optimizer may be Adam; moving statistics of batch normalisation are averaged like weights.
"""

from feddual.algorithms._base import Algorithm


class FedAvg(Algorithm):
    """Every default of `Algorithm`."""
