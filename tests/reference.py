"""Plain-numpy twins of what feddual computes. They share no code with it."""

import itertools

import numpy as np


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
