"""The loss at given weights on given data: a pure function that never touches the model or its optimizer.

Cross-entropy is taken from logits wherever a network's last activation can be taken off: Keras clips probabilities at
1e-7, which flattens every loss beyond 16.1 and draws a plateau that is not there. Sums over samples are in float64.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from diagnostics.subject import FEW, checked_arrays
from diagnostics.surfaces import checks
from diagnostics.surfaces.losses import Loss, Meant, is_squares, loss_hash, loss_name, resolve_loss
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional._keras import is_functional, is_random_state
from feddual.functional.cut import TOLERANCE
from feddual.functional.evaluated import Evaluated
from feddual.functional.graphs import compiled, in_batches
from feddual.functional.layout import fingerprint, moving_statistics, owners, read
from feddual.functional.network import Values, taken

BatchNorm = Literal["frozen", "recalibrate", "interpolate"]
NORMALISED = " of normalised logits"  # after the loss's name
COLUMNS = 3  # of a point's sums: loss, squared loss, right answers; then the loss of each class


@dataclass(frozen=True)
class Measures:
    """What one pass over the data gives, for one point or for many along the leading axes."""

    loss: np.ndarray  # mean per sample
    sem: np.ndarray  # standard error of that mean
    accuracy: np.ndarray  # NaN where there are no classes
    class_loss: np.ndarray  # mean per class, NaN where a class has no sample; the last axis is empty without classes


class Objective:
    """A model's loss on a fixed set of samples, as a function of its weights."""

    def __init__(
        self,
        model: Any,
        x: Any,
        y: Any,
        *,
        loss: Loss = None,
        regularisation: bool = False,
        sample_weight: Any = None,
        bn: BatchNorm = "frozen",
        batch_size: int = 500,
        logit_norm: bool = False,
        frozen: bool = False,
        cut: bool = True,
        features: bool = False,
        originals: Any = None,
    ):
        """Prepare the evaluation; nothing heavy runs but the frozen prefix, once.

        Args:
            model: A built Keras model with one input and one output.
            x: Inputs, shape (n, ...).
            y: Targets: integers (n,), one-hot (n, classes), or what `loss` takes.
            loss: None for cross-entropy from logits, `mse`, a Keras loss or its name, or a function of (targets,
                outputs) that returns one loss per sample; a Keras loss is asked for its losses before their mean.
            regularisation: Add the layers' own losses, as `evaluate` does.
            sample_weight: Of each sample, by which its loss is multiplied; the mean is over samples, as in Keras.
            bn: Moving statistics of batch normalisation: `frozen` at the model's, `recalibrate` (estimated anew on
                the data at each point) or `interpolate` (moved along directions between models).
            batch_size: Samples at a time; part of the result's last bits.
            logit_norm: Divide each sample's centred logits by their standard deviation over the classes first, at
                every point (Andriushchenko et al., 2023), so that confidence does not count: a loss that a rescaled
                last layer does not change.
            frozen: Let directions move frozen layers too.
            cut: Run leading frozen layers once and keep their features.
            features: `x` holds those features already.
            originals: With `features`, the inputs of the first few of them, to check them by.
        """
        if bn not in get_args(BatchNorm):
            raise UserError(f"bn: {bn!r} is unknown; allowed: {', '.join(get_args(BatchNorm))}")
        if batch_size < 1:
            raise UserError(f"batch_size: must be at least 1, got {batch_size}")
        x, y = checked_arrays(x, y)
        meant = resolve_loss(loss, y)
        self.kind, self._crosses, self.logit_norm = meant.kind, meant.kind == "crossentropy", logit_norm
        if logit_norm and not self._crosses:
            raise UserError(
                f"logit_norm: only cross-entropy has logits to normalise, {loss_name(loss)} has none; pass "
                "logit_norm=False (--no-logit-norm)"
            )
        self.bn, self.batch_size, self.regularisation = bn, batch_size, regularisation
        few = originals if features else x[:FEW]
        drops = any(map(is_random_state, getattr(model, "variables", [])))
        self.network = Evaluated(model, few, meant.end, frozen, dropout=not (bn == "recalibrate" and drops))
        self._losses = meant.of_logits if self.network.is_ended and meant.of_logits else meant.of_outputs
        self.loss_name, self.loss_hash = self._named(loss, meant, sample_weight is not None), loss_hash(loss)
        self.layout = self.network.layout
        self.weights = read(self.network.whole)
        if cut and (features or not regularisation):  # the whole network knows its layers' losses
            self.network.cut()
        self.prefix_check: float | None = None  # how far a few samples through prefix and rest are from the whole
        given = x
        if features:
            self._check_features(x, originals)
        elif self.network.prefix is not None:
            x = self._featured(self.network.prefix, x)
        rest = self.network.rest
        self.x = tf.constant(checks.fitting(x, rest.inputs[0]) if is_functional(rest) else x)
        self._forward = self.network.bind()
        shape = self._output_shape()
        if self.kind == "mse":
            checks.as_many(y, shape)
        self.labels, self.num_classes = checks.classes(y, shape, self._crosses)
        self.y = tf.constant(self.labels if self._crosses else y)
        weighted = () if sample_weight is None else (sample_weight,)
        self.data_hash = fingerprint(self.x.numpy(), self.y.numpy(), *weighted)
        self._sample_weight: Any = None if sample_weight is None else tf.constant(sample_weight, tf.float64)
        self._segments: Any = tf.constant(self.labels) if self.num_classes else None
        self._check(model, meant, None if features else given, y, loss)
        self.engines: dict[Any, Any] = {}  # what was compiled for it, by `diagnostics.surfaces.fast`
        self._statistics = _statistics(self.network.rest, self.layout) if bn == "recalibrate" else []

    def _named(self, loss: Loss, meant: Meant, is_weighted: bool) -> str:
        """The loss, and what else is in its numbers, for people and for the identity of a measurement.

        Whether it is of a kind whose second derivatives are known is noted on the way.
        """
        self.is_squares = is_squares(loss)
        self.is_clipped = meant.takes == "probabilities" and not self.network.is_ended
        parts = [loss_name(loss), " of clipped probabilities" * self.is_clipped, NORMALISED * self.logit_norm]
        return "".join([*parts, ", samples weighted" * is_weighted, ", with regularisation" * self.regularisation])

    def _check(self, model: Any, meant: Meant, x: Any, y: Any, loss: Loss) -> None:
        """Compare the outputs with what the loss takes them for, and its numbers with Keras' own."""
        with checks.inputs_that_fit():
            outputs = self.outputs(tf.constant(self.weights), self.x[: self.batch_size])
        checks.check_mask(loss, outputs, model.name)
        outputs = self._float(outputs)
        if not self.network.is_ended and np.isfinite(outputs).all():
            checks.check_outputs(meant, outputs.numpy(), model, self.network.why)
        if self.kind == "custom":
            checks.check_samples(self._losses, self.y[:FEW], outputs[:FEW])
        some = slice(min(checks.SAMPLES, self.batch_size))
        if x is not None and not self.logit_norm:
            losses = self.weighted(self.sample_losses(outputs[some], self.y[some])[0], 0)
            weights = None if self._sample_weight is None else self._sample_weight[some]
            checks.check_keras(loss, model, x[some], y[some], weights, float(tf.reduce_mean(losses)))

    # --- the frozen prefix

    def _featured(self, prefix: Any, x: np.ndarray) -> np.ndarray:
        """The prefix's output; `x` itself, with nothing cut off, if the rest makes something else of it."""
        x = checks.fitting(x, prefix.inputs[0])
        graph = compiled(lambda batch: prefix(batch, training=False), ([None, *x.shape[1:]], x.dtype))
        found = in_batches(graph, self.batch_size, x).numpy()
        self.prefix_check = self.network.mismatch(x[:FEW], found[:FEW])
        if self.prefix_check <= TOLERANCE:
            return found
        warnings.warn(
            f"the frozen layers computed once differ from the whole network by {self.prefix_check:.1e} (relative); "
            "taking the whole one. Please report the model.",
            stacklevel=2,
        )
        self.network.join()
        return x

    def _check_features(self, features: np.ndarray, originals: Any) -> None:
        if self.network.prefix is None:
            raise UserError("features: this model has no frozen layers at its beginning")
        if originals is None:
            return
        self.prefix_check = self.network.mismatch(originals, features[: len(originals)])
        if self.prefix_check > TOLERANCE:
            raise UserError(
                f"features: those kept on disk are not what the model's frozen layers give (they differ by "
                f"{self.prefix_check:.1e}, relative); delete the folder `features` in the cache"
            )

    # --- what data and model allow

    def _output_shape(self) -> tuple[int | None, ...]:
        signature = [tf.TensorSpec([self.layout.size]), tf.TensorSpec([None, *self.x.shape[1:]], self.x.dtype)]
        try:
            traced = tf.function(self._whole, autograph=False, input_signature=signature)
            outputs, penalty = traced.get_concrete_function().structured_outputs
        except (ValueError, TypeError) as error:
            raise UserError(
                f"x: inputs of shape {self.x.shape} do not fit the model: {str(error).splitlines()[0]}"
            ) from error
        self.said_of_regularisation = "none"  # of the layers' own losses
        if penalty is not None:
            self.said_of_regularisation = "included" if self.regularisation else "left out"
        if not tf.is_tensor(outputs):
            raise UserError("model: surfaces need one output; wrap it: keras.Model(one_input, one_output)")
        return tuple(outputs.shape)

    # --- traced

    def outputs(self, weights: Any, x: Any) -> Any:
        """The network's outputs for a batch at a weight vector."""
        return self._forward(weights, x)[0]

    def _whole(self, weights: Any, x: Any) -> tuple[Any, Any]:
        """The outputs, and what the layers' own losses add up to; None where no layer has one."""
        return self._called(lambda entry: taken(weights, entry), x)

    def _called(self, values: Values, x: Any) -> tuple[Any, Any]:
        outputs, _, losses = self._forward.call(values, x, losses=True)
        return outputs, tf.add_n([tf.cast(one, tf.float64) for one in losses]) if losses else None

    @staticmethod
    def _float(outputs: Any) -> Any:
        return tf.cast(outputs, tf.float32) if outputs.dtype in (tf.float16, tf.bfloat16) else outputs

    def sample_losses(self, outputs: Any, y: Any) -> tuple[Any, Any]:
        """Loss (float64) and right answers (float64, 0 or 1) of each sample."""
        return self.losses_of(self.taken_by_loss(outputs), y)

    def taken_by_loss(self, outputs: Any) -> Any:
        """What the loss is a function of: a network's outputs, or its logits normalised."""
        outputs = self._float(outputs)
        if self._crosses and self.logit_norm:
            centred = outputs - tf.reduce_mean(outputs, -1, keepdims=True)
            outputs = centred / (tf.math.reduce_std(outputs, -1, keepdims=True) + 1e-12)
        return outputs

    def losses_of(self, outputs: Any, y: Any) -> tuple[Any, Any]:
        """The same as `sample_losses`, of what `taken_by_loss` gave."""
        losses = tf.cast(_per_sample(self._losses(y, outputs)), tf.float64)
        if not self.num_classes and not self._crosses:
            return losses, tf.fill(tf.shape(losses), tf.constant(np.nan, tf.float64))
        labels = y if self._crosses else tf.cast(y, tf.int32)
        if labels.shape.rank == outputs.shape.rank and labels.shape[-1] == outputs.shape[-1]:
            labels = tf.argmax(labels, -1, tf.int32)  # one-hot rows
        equal = tf.equal(tf.argmax(outputs, -1, tf.int32), tf.reshape(labels, tf.shape(outputs)[:-1]))
        right = _per_sample(tf.cast(equal, tf.float64))
        return losses, tf.where(tf.math.is_finite(losses), right, tf.zeros_like(right))  # NaN has no largest entry

    def batch_losses(self, weights: Any, begin: Any, end: Any) -> tuple[Any, Any]:
        """Of samples, by the whole network: losses, weighted and with the layers' own, and right answers."""
        return self.batch_losses_at(lambda entry: taken(weights, entry), begin, end)

    def batch_losses_at(self, values: Values, begin: Any, end: Any) -> tuple[Any, Any]:
        """`batch_losses` of weights given tensor by tensor, as a function of the layout's entries."""
        outputs, penalty = self.outputs_at(values, begin, end)
        losses, right = self.sample_losses(outputs, self.y[begin:end])
        losses = self.weighted(losses, begin)
        return losses if penalty is None else losses + penalty, right

    def outputs_at(self, values: Values, begin: Any, end: Any) -> tuple[Any, Any]:
        """The outputs for samples, and the layers' own losses where they count, else None."""
        if self.regularisation:
            return self._called(values, self.x[begin:end])
        return self._forward.call(values, self.x[begin:end])[0], None

    def weighted(self, losses: Any, begin: Any) -> Any:
        """Losses of samples from `begin` on, along the last axis, times their weights."""
        if self._sample_weight is None:
            return losses
        return losses * self._sample_weight[begin : begin + tf.shape(losses)[-1]]

    def reduce(self, losses: Any, right: Any, begin: Any) -> Any:
        """Sums over samples from `begin` on; losses and right have shape (points, samples)."""
        sums = tf.stack([tf.reduce_sum(value, 1) for value in (losses, tf.square(losses), right)], 1)
        if not self.num_classes:
            return sums
        labels = self._segments[begin : begin + tf.shape(losses)[1]]
        by_class = tf.math.unsorted_segment_sum(tf.transpose(losses), labels, self.num_classes)
        return tf.concat([sums, tf.transpose(by_class)], 1)

    def over_batches(self, count: Any, size: int, points: int, batch: Callable[[Any, Any, Any], Any]) -> Any:
        """Add up `batch(number, begin, end)` of shape (points, columns) over batches of the first `count` samples."""
        columns = COLUMNS + self.num_classes

        def step(number: Any, sums: Any) -> Any:
            begin = number * size
            return number + 1, sums + batch(number, begin, tf.minimum(begin + size, count))

        total = tf.zeros([points, columns], tf.float64)
        return tf.while_loop(lambda number, _: number * size < count, step, (0, total))[1]

    def point_sums(self, weights: Any, count: Any) -> Any:
        """The plain path: the whole network at one weight vector, shape (1, columns)."""
        if self._statistics:
            weights = self._recalibrated(weights)

        def batch(number: Any, begin: Any, end: Any) -> Any:
            losses, right = self.batch_losses(weights, begin, end)
            return self.reduce(losses[None], right[None], begin)

        return self.over_batches(count, self.batch_size, 1, batch)

    def _recalibrated(self, weights: Any) -> Any:
        """The vector with moving statistics estimated on the data at these weights: batch moments, averaged.

        From statistics of zero, one training step leaves (1 - momentum) times a batch's own moments.
        """
        size, whole = min(self.batch_size, len(self.x)), len(self.x) // min(self.batch_size, len(self.x))
        start = self._statistics[0][0].start
        blank = tf.concat([weights[:start], tf.zeros([self.layout.size - start])], 0)
        kept = weights[start:]

        def step(number: Any, total: Any) -> Any:
            batch = self.x[number * size : (number + 1) * size]
            _, others = self._forward(blank, batch, training=True)
            parts = [tf.reshape(others[place], [-1]) / (1 - momentum) for _, place, momentum in self._statistics]
            return number + 1, total + tf.concat([tf.cast(part, tf.float64) for part in parts], 0)

        shape = sum(entry.stop - entry.start for entry, _, _ in self._statistics)
        total = tf.while_loop(lambda number, _: number < whole, step, (0, tf.zeros([shape], tf.float64)))[1]
        moments = tf.cast(total / whole, tf.float32)
        indices = np.concatenate([np.arange(entry.start, entry.stop) for entry, _, _ in self._statistics]) - start
        return tf.concat([weights[:start], tf.tensor_scatter_nd_update(kept, indices[:, None], moments)], 0)

    # --- numbers

    def __call__(self, weights: np.ndarray | None = None, count: int | None = None) -> Measures:
        """Loss and the rest at a weight vector (the model's own by default), on the first `count` samples (all)."""
        count = len(self.x) if count is None else count
        with checks.inputs_that_fit():
            sums = self._plain(self.weights if weights is None else weights, count).numpy()
        return self.measures(sums[0], count)

    @cached_property
    def _plain(self) -> Any:
        return compiled(self.point_sums, ([self.layout.size], tf.float32), ([], tf.int32))

    def measures(self, sums: np.ndarray, count: int | np.ndarray) -> Measures:
        """From sums over the first `count` samples, shape (..., columns)."""
        return measures(sums, count, self.class_counts)

    def class_counts(self, count: int) -> np.ndarray:
        """Samples of each class among the first `count`."""
        return np.bincount(self.labels[:count], minlength=self.num_classes) if self.num_classes else np.zeros(0)

    def gradient_norm(self, weights: np.ndarray | None = None) -> float:
        """The norm of the mean loss's gradient with respect to the trainable weights."""
        found = self._gradient(self.weights if weights is None else weights).numpy()
        return float(np.linalg.norm(found[: self.layout.num_trainable]))

    @cached_property
    def _gradient(self) -> Any:
        count = len(self.x)

        def gradient(weights: Any) -> Any:
            def step(begin: Any, total: Any) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(weights)
                    loss = tf.reduce_sum(self.batch_losses(weights, begin, begin + self.batch_size)[0])
                return begin + self.batch_size, total + tf.cast(tape.gradient(loss, weights), tf.float64)

            zero = tf.zeros([self.layout.size], tf.float64)
            return tf.while_loop(lambda begin, _: begin < count, step, (0, zero))[1] / count

        return compiled(gradient, ([self.layout.size], tf.float32))


def measures(sums: np.ndarray, count: int | np.ndarray, class_counts: Callable[[int], np.ndarray]) -> Measures:
    """Means and standard errors from sums; `count` is the samples of each point."""
    counts = np.broadcast_to(np.asarray(count), sums.shape[:-1])
    per_class = np.zeros((*counts.shape, sums.shape[-1] - COLUMNS))
    for number in np.unique(counts):
        per_class[counts == number] = class_counts(int(number))
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        loss = sums[..., 0] / counts
        variance = (sums[..., 1] / counts - loss**2) * counts / (counts - 1)
        sem = np.sqrt(np.where(variance < 0, 0.0, variance) / counts)  # below zero by rounding only
        return Measures(loss, sem, sums[..., 2] / counts, sums[..., COLUMNS:] / per_class)


# --- parts ------------------------------------------------------------------------------------------------------------


def _per_sample(values: Any) -> Any:
    """One number per sample: the mean over further axes, such as the places of a sequence."""
    return tf.reduce_mean(tf.reshape(values, [tf.shape(values)[0], -1]), 1)


def _statistics(model: Any, layout: Any) -> list[tuple[Any, int, float]]:
    """For each moving statistic: its entry, its place among the non-trainable variables, its momentum."""
    owned = owners(model)
    places = {id(variable): place for place, variable in enumerate(model.non_trainable_variables)}
    entries = [entry for entry in layout.entries if not entry.trainable]
    found = []
    for entry, variable in zip(entries, moving_statistics(model), strict=True):
        layer = owned[id(variable)][0]
        if isinstance(layer, keras.layers.BatchNormalization):
            if layer.momentum == 1:
                raise UserError(f"bn: {layer.name!r} has momentum 1, so its statistics cannot be estimated anew")
            found.append((entry, places[id(variable)], layer.momentum))
    return found
