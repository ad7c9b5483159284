"""A model evaluated at other weights than its own, and never changed."""

from typing import Any

from feddual._lazy import keras
from feddual.errors import UserError
from feddual.functional import _keras, cut
from feddual.functional._keras import is_functional, seeded_initialisers
from feddual.functional.layout import Layout
from feddual.functional.network import Bound, last_entries


class Evaluated:
    """A private copy of a model, cut where a diagnostic needs it, as a function of one weight vector.

    Cutting a Keras model adds nodes to its layers, so all surgery happens on a copy that was compared with the model. A
    model that has no such copy is used as it is, uncut, through `stateless_call`.
    """

    def __init__(self, model: Any, few: Any, end: str = "softmax", frozen: bool = False, dropout: bool = True):
        """Copy a model.

        Args:
            model: A built Keras model with one input and one output.
            few: Some inputs, by which the copy is compared with the model.
            end: An activation to take off if the model ends in it: softmax, sigmoid, or "" for none.
            frozen: Treat frozen layers as trainable, so that directions may move them.
            dropout: Off, dropout and noise layers are taken out, so that training mode is only batch statistics.

        Raises:
            UserError: Where a copy is needed and there is none.
        """
        check(model)
        copy, self.why = cut.checked_copy(model, few, dropout)
        self.is_copy = copy is not None
        self.whole: Any = model if copy is None else copy
        if not self.is_copy and (frozen or not dropout):
            need = "which frozen=True and bn='recalibrate' with dropout need"
            raise UserError(f"model: {model.name!r} cannot be copied, {need}: {self.why}")
        self.is_ended = self.is_copy and bool(end) and self._take_off(end, few)
        if frozen:
            for layer in _keras.layers_and_self(self.whole):
                layer.trainable = True
        if not self.whole.trainable_variables:
            raise UserError(f"model: {model.name!r} has no trainable weights; frozen=True looks at frozen ones")
        self.layout = Layout.of_model(self.whole)
        self.prefix: Any | None = None
        self.rest = self.whole

    def _take_off(self, end: str, few: Any) -> bool:
        """Cut the copy before its last activation, if the activation of what is left is the model again."""
        with seeded_initialisers(0):
            ended = cut.without_end(self.whole, end)
        if ended is self.whole:
            return False
        ended, activation = cut.fresh(ended), keras.activations.get(end)
        apart = cut.distance(self.whole, lambda x, training: activation(ended(x, training=training)), few)
        self.whole = ended if apart <= cut.TOLERANCE else cut.fresh(self.whole)  # even a failed cut leaves traces
        return apart <= cut.TOLERANCE

    def cut(self) -> None:
        """Take the leading frozen layers off: `rest` then maps their features to the outputs."""
        if self.is_copy and is_functional(self.whole):
            prefix, rest = cut.split(cut.fresh(self.whole), penultimate=False)  # a cut leaves traces, even a failed one
            if prefix is not None:
                self.prefix, self.rest = prefix, cut.fresh(rest)

    def join(self) -> None:
        """Undo `cut`."""
        self.prefix, self.rest = None, self.whole

    def mismatch(self, x: Any, features: Any) -> float:
        """How far `rest` of a few samples' features is from the whole network: relative to the largest output."""
        return cut.mismatch(self.whole(x, training=False), self.rest(features, training=False))

    def bind(self) -> Bound:
        """What comes after the prefix, taking its weights from the vector."""
        return Bound(self.rest, last_entries(self.rest, self.layout))


def check(model: Any) -> None:
    """Refuse what cannot be evaluated, saying why."""
    if not isinstance(model, keras.Model):
        raise UserError(f"model: expected a keras.Model or a run, got {type(model).__name__}")
    if not model.built:
        raise UserError(f"model: {model.name!r} has no weights yet; call it once or give it an Input")
    if is_functional(model) and (len(model.inputs) != 1 or len(model.outputs) != 1):
        said = f"{model.name!r} has {len(model.inputs)} inputs and {len(model.outputs)} outputs"
        advice = "surfaces need one of each. Wrap it: keras.Model(one_input, one_output)"
        raise UserError(f"model: {said}; {advice}")
