"""Calibration and neural collapse of any Keras model, on data that are given."""

from typing import Any

import numpy as np

from diagnostics.forgetting.measures import BINS, Collapse, Reliability, collapse_of, reliability
from diagnostics.subject import FEW, checked_arrays
from diagnostics.surfaces import checks
from feddual._lazy import keras
from feddual.errors import UserError
from feddual.functional import _keras, cut, evaluated

SUM_TOLERANCE = 1e-3  # of probabilities around one, also in half precision


def calibration(model: Any, x: Any, y: Any, *, bins: int = BINS, batch_size: int = 500) -> Reliability:
    """How right a model is when it is so sure: the expected calibration error and the table behind it.

    Bins have equal width: bin i holds the examples whose largest probability is in (i / bins, (i + 1) / bins]. The
    error is the sum over bins of their share of the examples times |accuracy - mean confidence| (Guo et al., 2017). On
    few examples it is too large: also a perfectly calibrated model's bins are a little off by chance.

    Args:
        model: A built Keras model from inputs to logits or probabilities over classes; it is left untouched. Rows that
            are nowhere negative and add up to one are taken for probabilities.
        x: Inputs, shape (n, ...).
        y: Integer labels, (n,), or one-hot rows.
        bins: How many.
        batch_size: Examples at a time.

    Returns:
        `.ece`, `.table`, `.plot()`.

    Raises:
        UserError: For input that cannot be used.

    Example:
        >>> import diagnostics, keras, numpy as np
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Activation("linear")])  # the inputs are logits
        >>> x = np.log([[0.8, 0.2], [0.8, 0.2], [0.8, 0.2], [0.8, 0.2]])  # sure to 0.8, and right in one of two
        >>> found = diagnostics.calibration(model, x, [0, 0, 1, 1])
        >>> round(found.ece, 3)
        0.3
        >>> found.table.query("count > 0")[["count", "accuracy"]].values.tolist()
        [[4.0, 0.5]]
    """
    if bins < 1 or batch_size < 1:
        raise UserError(f"bins, batch_size: must be at least 1, got {bins} and {batch_size}")
    evaluated.check(_given(model))
    x, y = checked_arrays(x, y)
    outputs = _run(model, _fitting(model, x), batch_size)
    labels = _labels(y, outputs)
    if (outputs >= 0).all() and (np.abs(outputs.sum(1) - 1) < SUM_TOLERANCE).all():
        outputs = np.log(np.maximum(outputs.astype(np.float64), np.finfo(float).tiny))
    return reliability(outputs, labels, bins)


def neural_collapse(model: Any, x: Any, y: Any, *, layer: str = "", batch_size: int = 500) -> Collapse:
    """How far a model's last features have collapsed onto one point per class, and these onto a regular simplex.

    Papyan, Han and Donoho (2020): NC1 = tr(S_W S_B^+) / C, and of the class means less their own mean how far their
    lengths (equinorm) and angles (equiangle, simplex_angle) are from those of a simplex. All are 0 at full collapse.

    Args:
        model: A built Keras model, functional or Sequential; it is left untouched.
        x: Inputs, shape (n, ...).
        y: Integer labels, (n,), or one-hot rows.
        layer: Whose outputs are looked at; by default the inputs of the last layer that has weights.
        batch_size: Examples at a time.

    Returns:
        The numbers, with how many classes and examples they are of.

    Raises:
        UserError: For input that cannot be used, or a model without such a layer.

    Example:
        >>> import diagnostics, keras, numpy as np
        >>> model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        >>> x = np.repeat(np.eye(3), 4, axis=0)  # four copies of the corners of a triangle
        >>> found = diagnostics.neural_collapse(model, x, [0] * 4 + [1] * 4 + [2] * 4)
        >>> round(found.nc1, 6), round(found.equinorm, 6), round(found.simplex_angle, 6)
        (0.0, 0.0, 0.0)
        >>> bool(diagnostics.neural_collapse(model, x + np.arange(12)[:, None] % 2, np.arange(12) // 4).nc1 > 0)
        True
    """
    if batch_size < 1:
        raise UserError(f"batch_size: must be at least 1, got {batch_size}")
    evaluated.check(_given(model))
    x, y = checked_arrays(x, y)
    x = _fitting(model, x)
    labels = _labels(y, _run(model, x[:1], 1))
    features = _run(_to_features(model, layer, x[:FEW]), x, batch_size)
    return collapse_of(features.reshape(len(features), -1).astype(np.float64), labels)


def _given(model: Any) -> Any:
    if not isinstance(model, keras.Model):
        said = f"expected a keras.Model, got {type(model).__name__}"
        raise UserError(f"model: {said}; of a run give run.model() with x and y, or train with --probe forgetting")
    return model


def _fitting(model: Any, x: np.ndarray) -> np.ndarray:
    return checks.fitting(x, model.inputs[0]) if _keras.is_functional(model) else x


def _run(model: Any, x: np.ndarray, batch_size: int) -> np.ndarray:
    """The outputs, in inference mode, some examples at a time."""
    parts = range(0, len(x), batch_size)
    with checks.inputs_that_fit():
        found = [np.asarray(model(x[begin : begin + batch_size], training=False)) for begin in parts]
    return np.concatenate(found)


def _labels(y: np.ndarray, outputs: np.ndarray) -> np.ndarray:
    if outputs.ndim != 2 or outputs.shape[1] < 2:
        shape = (None, *outputs.shape[1:])
        raise UserError(f"model: expected outputs of shape (examples, classes) with two classes or more, got {shape}")
    if y.ndim == 2 and y.shape == (len(y), outputs.shape[1]) and ((y == 0) | (y == 1)).all() and (y.sum(1) == 1).all():
        y = y.argmax(1)
    y = y[:, 0] if y.shape[1:] == (1,) else y
    count = outputs.shape[1]
    whole = y.ndim == 1 and y.dtype.kind in "iufb" and bool((y == np.round(y)).all())
    if not whole or y.min() < 0 or y.max() >= count:
        found = f"{y.dtype} of shape {y.shape}" + (f" from {y.min():g} to {y.max():g}" if y.dtype.kind in "iuf" else "")
        raise UserError(f"y: expected integer labels from 0 to {count - 1} or one-hot rows, got {found}")
    return y.astype(np.int64)


def _to_features(model: Any, layer: str, few: np.ndarray) -> Any:
    """A copy of the model up to its features: cutting leaves traces in layers."""
    copy, why = cut.checked_copy(model, few) if _keras.is_functional(model) else (None, "it is no graph of layers")
    if copy is None:
        raise UserError(f"model: {model.name!r} cannot be cut before its last layer: {why}")
    if layer:
        outputs = _keras.outputs_within(copy)
        named = {one.name: outputs[id(one)] for one in copy.layers if id(one) in outputs}
        if layer not in named:
            raise UserError(f"layer: {layer!r} is unknown; allowed: {', '.join(named)}")
        return keras.Model(copy.inputs[0], named[layer])
    last = next((one for one in reversed(copy.layers) if one.weights), None)
    if last is None or isinstance(last, keras.Model) or not _keras.is_called_once(last):
        raise UserError(f"model: {model.name!r} has no single last layer with weights; name the features by layer=")
    return keras.Model(copy.inputs[0], last.input)
