"""What a random walk would look like: the share of its squared distances that principal directions hold."""

from collections.abc import Sequence

import numpy as np


def walk_shares(rounds: Sequence[Sequence[int]]) -> np.ndarray:
    """The shares that random walks from one start would have in many dimensions.

    Steps in many dimensions are as good as orthogonal, so the Gram matrix of a walk's places is known: with X_u the
    place after u steps of length 1, ⟨X_u, X_v⟩ = min(u, v) for one walk and 0 for two. With the last place as the
    origin, and many steps, the first direction holds 8/π² = 81 %, the second 9 %; around the mean of all places, as
    PCA is more often taken, it is 6/π² = 61 % and 15 % (Antognini and Sohl-Dickstein, "PCA of high dimensional random
    walks with comparison to neural network training", NeurIPS 2018).

    Args:
        rounds: Of each walk, after how many steps its places are taken; the last of the first walk is the origin.

    Returns:
        Shares, largest first, as many as there are places.
    """
    steps = np.concatenate([np.asarray(one, float) for one in rounds])
    walk = np.repeat(np.arange(len(rounds)), [len(one) for one in rounds])
    inner = np.where(walk[:, None] == walk, np.minimum.outer(steps, steps), 0.0)
    last = float(rounds[0][-1])
    origin = np.where(walk == 0, np.minimum(steps, last), 0.0)  # ⟨X_u, X_T⟩
    gram = inner - origin[:, None] - origin + last
    values = np.maximum(np.linalg.eigvalsh(gram)[::-1], 0)
    return np.asarray(values / values.sum())
