"""What model, data and loss allow: anything else would give a number that is not the model's loss."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np

from diagnostics.surfaces.losses import MEANS, Function, Loss, Meant
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional._keras import mask_of
from feddual.functional.cut import TOLERANCE, ends_linearly, mismatch
from feddual.functional.graphs import compiled

CLASSES_AT_MOST = 1000  # beyond, no loss per class is kept
ENOUGH = 16  # outputs that all lie between 0 and 1 by more than chance
SAMPLES = 64  # by which the loss is compared with Keras' own


def fitting(x: np.ndarray, wanted: Any) -> np.ndarray:
    """The inputs as the model takes them, if they can be."""
    if x.ndim != len(wanted.shape) or any(
        size not in (None, found) for size, found in zip(wanted.shape[1:], x.shape[1:], strict=True)
    ):
        raise UserError(f"x: the model takes inputs of shape {tuple(wanted.shape)}, got {x.shape}")
    is_text = x.dtype.kind in "SU"
    if is_text != (wanted.dtype == "string"):
        raise UserError(f"x: the model takes inputs of type {wanted.dtype}, got {'text' if is_text else x.dtype}")
    if is_text:
        return x
    if np.issubdtype(wanted.dtype, np.integer) and not (x == np.round(x)).all():
        raise UserError(f"x: the model takes whole numbers ({wanted.dtype}), got {x.dtype} with fractions")
    return x.astype(wanted.dtype)


def as_many(y: np.ndarray, outputs: tuple[int | None, ...]) -> None:
    """Refuse targets that would be broadcast against the outputs."""
    sizes = [size or 0 for size in outputs[1:]]  # 0: known only when it runs
    if all(sizes) and prod(y.shape[1:]) != prod(sizes):
        raise UserError(f"y: mse over outputs of shape {outputs} needs as many targets, got {y.shape}")


def classes(y: np.ndarray, outputs: tuple[int | None, ...], crosses: bool) -> tuple[np.ndarray, int]:
    """Integer labels and how many classes there are (0: no accuracy, no loss per class)."""
    count = int(outputs[-1] or 0) if len(outputs) > 1 else 0
    one_hot = y.ndim > 1 and y.shape[-1] == count > 1 and y.ndim == len(outputs)
    if one_hot and ((y == 0) | (y == 1)).all() and (y.sum(-1) == 1).all():
        y = y.argmax(-1)
    elif y.ndim == 2 and y.shape[1] == 1 and len(outputs) == 2:
        y = y[:, 0]
    integral = np.issubdtype(y.dtype, np.integer) or (y == np.round(y)).all()
    fits = integral and y.ndim == len(outputs) - 1 and count > 1
    inside = fits and y.min() >= 0 and y.max() < count
    if crosses and not inside:
        raise UserError(
            f"y: cross-entropy over outputs of shape {outputs} needs integer labels from 0 to {count - 1} or "
            f"one-hot rows, got {y.dtype} of shape {y.shape}"
            + (f" from {y.min()} to {y.max()}" if y.size else "")
            + ("; for one output pass loss='binary_crossentropy' or 'mse'" if count == 1 else "")
            + "; for anything else give loss= a function of (targets, outputs)"
        )
    if not inside:
        return np.zeros(len(y), np.int32), 0
    per_class = y.ndim == 1 and count <= CLASSES_AT_MOST
    return y.astype(np.int32), count if per_class else 0


@contextmanager
def inputs_that_fit() -> Iterator[None]:
    """What TensorFlow cannot compute, said plainly: an index beyond the rows of an embedding, for instance."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = re.search(r"indices\S* = -?\d+ is not in \[.*?\)", str(error))
        reason = found[0] if found else str(error).splitlines()[0]
        raise UserError(f"x: the model cannot take these inputs: {reason}") from error


def check_mask(loss: Loss, outputs: Any, name: str) -> None:
    """Refuse outputs with places that Keras leaves out of its losses; a function of one's own may do so itself."""
    own = callable(loss) and not isinstance(loss, keras.losses.Loss)
    if mask_of(outputs) is not None and not own:
        raise UserError(
            f"model: the outputs of {name!r} carry a mask (of an Embedding with mask_zero?), by which Keras leaves "
            "places out of the loss; give loss= a function of (targets, outputs) that does so"
        )


def check_outputs(meant: Meant, outputs: np.ndarray, model: Any, why: str) -> None:
    """Refuse probabilities that would be taken for logits, and numbers that would be taken for probabilities.

    Args:
        meant: The loss.
        outputs: Of a batch, at the model itself.
        model: The model: what a layer without an activation gives is no probability, wherever it lies.
        why: Why it could not be copied, if so.
    """
    inside = bool((outputs >= 0).all() and (outputs <= 1).all())
    if meant.takes == "probabilities" and not inside:
        raise UserError(
            f"loss: it takes probabilities, but {model.name!r} returns values from {outputs.min():.3g} to "
            f"{outputs.max():.3g}; for logits pass the loss with from_logits=True"
        )
    if meant.takes != "logits?" or ends_linearly(model):
        return
    adds_up = inside and np.allclose(outputs.sum(-1), 1, atol=1e-3)
    between = inside and outputs.size >= ENOUGH and outputs.max() > 0
    if adds_up or between:
        said, end = ("add up to 1", "softmax") if adds_up else ("all lie between 0 and 1", "last activation")
        probabilities = "keras.losses.SparseCategoricalCrossentropy() to take the outputs as they are"
        raise UserError(
            f"model: {model.name!r} returns probabilities (its outputs {said}) and cannot be cut before its {end}"
            f"{f': {why}' if why else ''}. Return logits, or pass loss="
            f"{probabilities if adds_up else 'binary_crossentropy, or a function of (targets, outputs)'}; if they are "
            "logits after all, keras.losses.SparseCategoricalCrossentropy(from_logits=True)"
        )


def check_samples(function: Function, y: Any, outputs: Any) -> None:
    """Refuse a loss that fails, gives one number for a batch, or mixes samples: targets that broadcast, for instance.

    Args:
        function: From (targets, outputs) to losses.
        y: Targets of a few samples.
        outputs: The network's for them.
    """
    shapes = f"targets of shape {tuple(y.shape)} and outputs of shape {tuple(outputs.shape)}"
    try:
        together = function(y, outputs)
        alone = [function(y[i : i + 1], outputs[i : i + 1]) for i in range(len(y))]
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        raise UserError(f"loss: it fails for {shapes}: {str(error).splitlines()[0]}") from error
    if together.shape.rank == 0:
        raise UserError(
            "loss: the function returned one number for a batch; it must return one loss per sample, so that "
            "standard errors and classes can be told"
        )
    if mismatch(np.ravel(together), np.concatenate([np.ravel(one) for one in alone])) > TOLERANCE:
        raise UserError(f"loss: that of a sample depends on the others of its batch, for {shapes}; do they broadcast?")


def check_keras(loss: Any, model: Any, x: Any, y: Any, weights: Any, found: float) -> None:
    """Refuse a loss that is not what Keras itself says of the same samples.

    Args:
        loss: A loss of Keras, or anything else, which is not looked at.
        model: The model itself.
        x: Inputs of some samples.
        y: Their targets.
        weights: Theirs, or None.
        found: Their mean loss as it is computed here.
    """
    if not isinstance(loss, keras.losses.Loss) or loss.reduction not in MEANS:
        return
    # Traced, as `evaluate` does it: there Keras finds the logits behind probabilities.
    try:
        own = compiled(lambda x, y: loss(y, model(x, training=False), weights), *((v.shape, v.dtype) for v in (x, y)))
        wanted = float(own(x, y))
    except (ValueError, TypeError):  # labels where Keras takes one-hot rows: nothing to compare with
        return
    if abs(found - wanted) > TOLERANCE * (abs(wanted) + 1e-3):
        raise UserError(
            f"loss: on {len(y)} samples it is {found:.6g} here, where Keras says {wanted:.6g}: are weights "
            "averaged, or do sigmoids stand for classes, whose inputs Keras takes for logits? Give loss= a function of "
            "(targets, outputs)"
        )
