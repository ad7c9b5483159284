"""Plain-numpy twins of what feddual computes. They share no code with it."""

import itertools

import numpy as np
from scipy.stats import wasserstein_distance


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def mlp_loss_and_gradient(weights, x, y, sizes):
    """Mean cross-entropy of a ReLU network and its gradient, by hand.

    Args:
        weights: Vector: kernel, bias, kernel, bias, ...
        x: Inputs (n, sizes[0]).
        y: Labels.
        sizes: Units of every layer, from the input to the classes.
    """
    layers, position = [], 0
    for a, b in itertools.pairwise(sizes):
        kernel = weights[position : position + a * b].reshape(a, b)
        bias = weights[position + a * b : position + a * b + b]
        layers.append((kernel, bias))
        position += a * b + b
    values = [x]
    for number, (kernel, bias) in enumerate(layers):
        z = values[-1] @ kernel + bias
        values.append(np.maximum(z, 0) if number < len(layers) - 1 else z)
    p = softmax(values[-1])
    n = len(y)
    loss = -np.log(p[np.arange(n), y]).mean()
    delta = p.copy()
    delta[np.arange(n), y] -= 1
    delta /= n
    gradients = []
    for number in range(len(layers) - 1, -1, -1):
        gradients[:0] = [(values[number].T @ delta).ravel(), delta.sum(0)]
        if number:
            delta = (delta @ layers[number][0].T) * (values[number] > 0)
    return loss, np.concatenate(gradients)


def local_training(weights, x, y, orders, batch_size, gradient, optimizer="adam", rate=1e-3, momentum=0.0, clip=None):
    """Epochs of mini-batches, the last short one included, from a fresh optimizer."""
    w = weights.astype(np.float64).copy()
    m, v, t = np.zeros_like(w), np.zeros_like(w), 0
    for order in orders:
        for begin in range(0, len(order), batch_size):
            rows = order[begin : begin + batch_size]
            g = gradient(w, x[rows], y[rows])
            if clip is not None:
                g = g * min(1.0, clip / np.linalg.norm(g))
            t += 1
            if optimizer == "adam":
                m = 0.9 * m + 0.1 * g
                v = 0.999 * v + 0.001 * g * g
                w = w - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-7 / np.sqrt(1 - 0.999**t))
            else:
                m = momentum * m - rate * g
                w = w + m
    return w


# --- barycenters of value distributions: vectors as rows, weights that sum to one


def distance(p, q, kind="w1"):
    """Between the values of two vectors: w1, w2 match them in sorted order, l2 by coordinate."""
    gaps = [abs(a - b) for a, b in (zip(p, q, strict=True) if kind == "l2" else zip(sorted(p), sorted(q), strict=True))]
    return sum(gaps) / len(gaps) if kind == "w1" else (sum(gap**2 for gap in gaps) / len(gaps)) ** 0.5


def gibbs(rows, weights, epsilon, kind="w1", steps=400):
    """Eqs. 15-16 iterated from the weighted mean, as they stand."""
    p = weights @ rows
    for _ in range(steps):
        gamma = weights * np.exp([-distance(p, row, kind) / epsilon for row in rows])
        p = gamma @ rows / gamma.sum()
    return p


def in_order_of(values, vector):
    """The values, the smallest where the vector is smallest, and so on."""
    return np.sort(values)[np.argsort(np.argsort(vector))]


def quantile(rows, weights, kind):
    """Mean (w2), weighted median (w1) or geometric median of the sorted rows, in the order of the weighted mean."""
    ranked = np.array([sorted(row) for row in rows], np.float64)
    if kind == "quantile_w2":
        values = weights @ ranked
    elif kind == "quantile_w1":  # some row's value is always a median
        values = [min(column, key=lambda value: weights @ np.abs(column - value)) for column in ranked.T]
    else:  # Weiszfeld
        values = weights @ ranked
        for _ in range(3000):
            pull = weights / np.linalg.norm(ranked - values, axis=1)
            values = pull @ ranked / pull.sum()
    return in_order_of(values, weights @ rows)


def published(distributions, weights, num_iter, epsilon):
    """The public code's function, transcribed with its SciPy distance and float32 accumulators."""
    center = np.mean(distributions, axis=0)
    for _ in range(num_iter):
        new, total = np.zeros_like(center), np.zeros_like(center)
        for dist, weight in zip(distributions, weights, strict=True):
            gamma = np.exp(-wasserstein_distance(center, dist) / epsilon)
            new += weight * gamma * dist
            total += weight * gamma
        center = new / (total + 1e-10)
    return center


def free_support(clouds, weights):
    """Two clouds of few points: the best of all matchings, and the weighted mean of matched points."""
    a, b = clouds
    cost = {order: np.square(a - b[list(order)]).sum() for order in itertools.permutations(range(len(b)))}
    best = list(min(cost, key=cost.get))
    return weights[0] * a + weights[1] * b[best]


# --- server optimizers


def server_step(x, aggregated, state, name, learning_rate=1.0, momentum=0.0, decay=0.0, beta1=0.0, beta2=0.0, tau=0.0):
    """FedAvgM and Algorithm 2 of Reddi et al. 2021, a number at a time; `state` is changed."""
    after = np.array(x, np.float64)
    for j, (old, new) in enumerate(zip(x, aggregated, strict=True)):
        d = new - old
        if name == "ema":
            after[j] = new  # only what is tested is averaged
        elif name == "momentum":
            state["v", j] = momentum * state.get(("v", j), 0.0) + d
            after[j] = old + learning_rate * state["v", j]
        else:
            state["m", j] = beta1 * state.get(("m", j), 0.0) + (1 - beta1) * d
            v = state.get(("v", j), tau**2)
            sign = 1 if v > d * d else -1 if v < d * d else 0
            v = v - (1 - beta2) * d * d * sign if name == "fedyogi" else beta2 * v + (1 - beta2) * d * d
            state["v", j] = v
            after[j] = old + learning_rate * state["m", j] / (v**0.5 + tau)
    return after
