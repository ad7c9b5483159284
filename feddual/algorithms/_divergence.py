"""The divergence of FedDUAL's adaptive loss."""

from typing import Any

from feddual._lazy import tf


def weight_divergence(values: Any, anchor: Any, q: Any, reverse: bool) -> Any:
    """KL(p || q), or KL(q || p), of p = softmax(values) and q = softmax(anchor), with its gradient written out.

    With moved = values - anchor and T = sum q e^moved:  p = q e^moved / T  and  log p - log q = moved - log T.
    d KL(p || q) / dv = p (log p - log q - KL) = p (moved - sum p moved);   d KL(q || p) / dv = p - q.
    """

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def divergence(values: Any) -> Any:
        moved = values - anchor
        powers = q * tf.exp(moved)
        total = tf.reduce_sum(powers)
        log_total = tf.math.log(total)
        if reverse:
            return log_total - tf.reduce_sum(q * moved), lambda change: change * (powers / total - q)
        mean = tf.reduce_sum(powers * moved) / total
        return mean - log_total, lambda change: powers * (moved - mean) * (change / total)

    return divergence(values)
