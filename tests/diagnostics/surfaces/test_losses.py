"""The loss that is meant: Keras' own of the model, whatever its end; or an answer that says what to pass."""

import numpy as np
import pytest

import feddual
from diagnostics.landscape import Landscape, loss_lines, loss_surface
from diagnostics.subject import of_run, resolve
from diagnostics.surfaces.losses import compiled_loss, loss_name
from feddual._lazy import keras, tf
from feddual.data import datasets, partition
from feddual.errors import UserError
from tests.helpers import tiny

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 80)
SERIES, PLACES = RNG.normal(size=(80, 5, 3)).astype(np.float32), RNG.integers(0, 4, (80, 5))
NUMBERS = RNG.normal(size=80).astype(np.float32)
TOKENS = RNG.integers(1, 12, (80, 5))
ENTROPY = "sparse_categorical_crossentropy"
QUIET = {"grid": 3, "progress": False, "images": None}


def dense(units, activation=None, seed=1):
    return keras.layers.Dense(units, activation, kernel_initializer=keras.initializers.RandomNormal(0, 2, seed=seed))


def model_of(build, shape=(6,), loss=None, dtype=None):
    keras.utils.set_random_seed(1)
    inputs = keras.Input(shape, dtype=dtype)
    model = keras.Model(inputs, build(inputs))
    if loss is not None:
        model.compile(loss=loss, jit_compile=False)
    return model


def centre(model, x=X, y=Y, **options):
    surface = loss_surface(model, x, y, **QUIET, **options)
    return surface.loss[surface.centre]


def evaluated(model, x=X, y=Y, **options):
    return model.evaluate(x, y, batch_size=80, verbose=0, **options)


# --- probabilities are not taken for logits


def called_twice(x):
    layer = keras.layers.Softmax()
    return layer(dense(4, seed=2)(layer(dense(5)(x))))


CUT = {  # before: 1.508 where Keras says 7.498; cut at its first call, 9.076 for 1.936
    "identity": lambda x: keras.layers.Identity()(dense(4, "softmax")(x)),
    "linear": lambda x: keras.layers.Activation("linear")(dense(4, "softmax")(x)),
    "called twice": called_twice,
}
UNCUT = {  # before: 1.508 for 6.708, 1.446 for 2.894
    "reshape": lambda x: keras.layers.Reshape((4,))(dense(4, "softmax")(x)),
    "average": lambda x: keras.layers.Average()([dense(4, "softmax")(x), dense(4, "softmax", 2)(x)]),
}


@pytest.mark.parametrize("end", CUT)
def test_a_softmax_with_something_after_it_is_taken_off(end):
    model = model_of(CUT[end])
    found = centre(model)
    model.compile(loss=ENTROPY, jit_compile=False)
    assert found == pytest.approx(evaluated(model), rel=1e-5)
    assert centre(model) == found


@pytest.mark.parametrize("end", UNCUT)
def test_probabilities_that_stay_are_refused_or_taken_as_keras_takes_them(end):
    model = model_of(UNCUT[end])
    with pytest.raises(UserError, match=r"returns probabilities .*add up to 1.*SparseCategoricalCrossentropy\(\)"):
        centre(model)
    wanted = model_of(UNCUT[end], loss=ENTROPY)
    said = loss_surface(model, X, Y, loss=keras.losses.SparseCategoricalCrossentropy(), **QUIET)
    assert said.loss[said.centre] == pytest.approx(evaluated(wanted), rel=1e-5)
    assert "crossentropy of clipped probabilities" in said.caption()
    assert centre(wanted) == said.loss[said.centre]


def test_a_softmax_at_each_place_of_a_series():  # before: 1.425 for 4.702
    def build(x):
        return keras.layers.TimeDistributed(dense(4, "softmax"))(x)

    with pytest.raises(UserError, match="returns probabilities"):
        centre(model_of(build, (5, 3)), SERIES, PLACES)
    model = model_of(build, (5, 3), ENTROPY)
    assert centre(model, SERIES, PLACES) == pytest.approx(evaluated(model, SERIES, PLACES), rel=1e-5)


def test_sigmoids():  # before: 1.485 for 7.498
    def build(x):
        return dense(4, "sigmoid")(x)

    with pytest.raises(UserError, match=r"all lie between 0 and 1.*binary_crossentropy"):
        centre(model_of(build))
    with pytest.raises(UserError, match=r"where Keras says 7.65.*sigmoids"):
        centre(model_of(build, loss=ENTROPY))
    rows = np.eye(4, dtype=np.float32)[Y]
    model = model_of(build, loss="binary_crossentropy")
    assert centre(model, y=rows) == pytest.approx(evaluated(model, y=rows), rel=1e-5)
    with pytest.raises(UserError, match=r"for one output pass loss='binary_crossentropy'"):
        centre(model_of(lambda x: dense(1, "sigmoid")(x)), y=Y % 2)


def test_sigmoids_have_no_plateau():
    """Of outputs that round to 0 and 1 Keras' clipped probabilities would say 16.1 at most."""
    model = model_of(lambda x: dense(1, "sigmoid")(x), loss="binary_crossentropy")
    losses = loss_surface(model, 20 * X, Y % 2, **QUIET).loss
    assert losses.max() > 17


def test_logits_are_not_taken_for_probabilities():  # before: 7.498, where evaluate says 9.05
    with pytest.raises(UserError, match=r"takes probabilities, but .* from_logits=True"):
        centre(model_of(lambda x: dense(4)(x), loss=ENTROPY))


def test_small_logits_are_logits():
    model = model_of(lambda x: keras.layers.Dense(4, kernel_initializer="zeros")(dense(5)(x)))
    assert centre(model) == pytest.approx(np.log(4), rel=1e-6)
    model.layers[-1].bias.assign([0.1, 0.2, 0.3, 0.4])  # between 0 and 1, and adding up to 1 as well
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert centre(model) == pytest.approx(float(entropy(Y, model(X))), rel=1e-5)


# --- the loss of the model


def test_without_a_loss_the_compiled_one_is_meant():
    model = model_of(lambda x: dense(1)(x), loss="mae")  # before: refused, as if it were cross-entropy
    surface = loss_surface(model, X, NUMBERS, **QUIET)
    assert surface.loss[surface.centre] == pytest.approx(evaluated(model, y=NUMBERS), rel=1e-5)
    assert surface.meta["identity"]["loss"] == "mean_absolute_error"
    assert centre(model, y=NUMBERS, loss="mse") > surface.loss[surface.centre]
    assert loss_name(compiled_loss(model, NUMBERS)) == "mean_absolute_error"


def test_a_dictionary_with_one_loss_is_that_loss():
    model = model_of(lambda x: keras.layers.Dense(4, "softmax", name="answer")(x), loss={"answer": ENTROPY})
    assert centre(model) == pytest.approx(evaluated(model), rel=1e-5)


class Own(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.reduce_mean(y_pred)


def test_what_no_function_of_samples_gives_is_refused():
    inputs = keras.Input((6,))
    with pytest.raises(UserError, match="compute_loss of its own"):
        centre(Own(inputs, dense(4)(inputs)))
    entropy = keras.losses.SparseCategoricalCrossentropy
    summed = model_of(lambda x: dense(4)(x), loss=entropy(from_logits=True, reduction="sum"))
    with pytest.raises(UserError, match="reduction is 'sum'"):
        centre(summed)
    scaled = model_of(lambda x: dense(4)(x))
    scaled.compile(loss=entropy(from_logits=True), loss_weights=[0.5])
    with pytest.raises(UserError, match="loss_weights"):
        centre(scaled)
    assert centre(scaled, loss=entropy(from_logits=True)) == pytest.approx(centre(scaled, loss="crossentropy"))


def test_targets_that_broadcast_are_refused():  # before: 15.3 for 16.3
    model = model_of(lambda x: dense(1)(x), loss="mse")
    with pytest.raises(UserError, match=r"depends on the others .*shape \(4,\) and .*shape \(4, 1\)"):
        centre(model, y=NUMBERS, loss=lambda y, z: (y - z) ** 2)
    found = centre(model, y=NUMBERS, loss=lambda y, z: (y - z[:, 0]) ** 2)
    assert found == pytest.approx(evaluated(model, y=NUMBERS), rel=1e-5)


def test_masked_places_are_refused():
    def build(x):
        h = keras.layers.Embedding(12, 3, mask_zero=True)(x)
        return keras.layers.Dense(4)(keras.layers.LSTM(3, return_sequences=True)(h))

    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    with pytest.raises(UserError, match="carry a mask"):
        centre(model_of(build, (5,), entropy), TOKENS - 1, PLACES)


# --- regularisation and weights


def test_regularisation_is_left_out_or_put_in_and_said():
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def build(x):
        return keras.layers.Dense(4, kernel_regularizer="l2")(keras.layers.Dense(5, "relu", kernel_regularizer="l1")(x))

    model = model_of(build, loss=entropy)
    without, included = (loss_surface(model, X, Y, regularisation=wish, **QUIET) for wish in (False, True))
    np.testing.assert_allclose(included.loss[included.centre], evaluated(model), rtol=1e-5)
    np.testing.assert_allclose(without.loss[without.centre], float(entropy(Y, model(X))), rtol=1e-5)
    assert "crossentropy, without the layers' regularisation" in without.caption()
    assert "crossentropy, with regularisation" in included.caption()
    found = [one.meta["facts"]["regularisation"] for one in (without, included, loss_surface(plain(), X, Y, **QUIET))]
    assert found == ["left out", "included", "none"]
    assert included.meta["facts"]["gradient_norm"] != without.meta["facts"]["gradient_norm"]


def plain():
    return model_of(lambda x: dense(4, seed=3)(keras.layers.Dense(5, "relu")(x)))


@pytest.mark.parametrize("engine", ["auto", "plain"])
def test_weights_of_samples_and_classes(engine):
    model, weights = plain(), np.linspace(0.1, 3, 80)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=False)
    options = {"engine": engine, "batch_size": 32}
    surface = loss_surface(model, X, Y, sample_weight=weights, **options, **QUIET)
    assert surface.loss[surface.centre] == pytest.approx(evaluated(model, sample_weight=weights), rel=1e-5)
    assert "samples weighted" in surface.caption()
    by_class = {0: 5.0, 2: 0.5}
    wanted = evaluated(model, sample_weight=np.array([by_class.get(label, 1.0) for label in Y]))
    assert centre(model, class_weight=by_class, **options) == pytest.approx(wanted, rel=1e-5)
    assert centre(model, y=np.eye(4)[Y], loss="crossentropy", class_weight=by_class) == pytest.approx(wanted, rel=1e-5)
    half = loss_surface(model, X, Y, sample_weight=weights, **options, **{**QUIET, "images": 40})
    assert half.loss[half.centre] == pytest.approx(float(Landscape(half_of(model, weights)).measures().loss), rel=1e-6)


def half_of(model, weights):
    return resolve(model, X, Y, None, "train", 40, 0, weights)


def test_weights_are_the_same_on_workers_and_tell_measurements_apart(tmp_path):
    model, weights = plain(), np.linspace(0.1, 3, 80)
    options = {"count": 2, "grid": 3, "progress": False, "images": None, "sample_weight": weights}
    serial = loss_lines(model, X, Y, out=tmp_path / "s", **options)
    parallel = loss_lines(model, X, Y, workers=2, executor="inline", **options)
    np.testing.assert_array_equal(serial.loss, parallel.loss)
    with pytest.raises(UserError, match="holds another measurement"):
        loss_lines(model, X, Y, out=tmp_path / "s", **{**options, "sample_weight": weights + 1})


def test_weights_that_cannot_be_used_are_named():
    cases = {
        "sample_weight: expected 80 finite numbers": {"sample_weight": np.ones(3)},
        "pass one of them": {"sample_weight": np.ones(80), "class_weight": {0: 1.0}},
        "class_weight: expected numbers by class": {"class_weight": {0: "a lot"}},
        "class_weight: y has no classes": {"class_weight": {0: 1.0}, "y": NUMBERS, "loss": "mse"},
    }
    for message, options in cases.items():
        with pytest.raises(UserError, match=message):
            centre(plain(), **options)


# --- samples


def test_measurements_are_drawn_at_random():  # before: the first rows
    x, ordered = np.repeat(np.arange(500.0)[:, None], 6, 1), np.sort(RNG.normal(size=500))
    for y in (ordered, ordered[:, None], np.arange(500)):
        rows = resolve(plain(), x, y, None, "train", 50, 0).x[:, 0]
        assert len(set(rows)) == 50
        assert 150 < rows.mean() < 350
        assert set(rows) != set(resolve(plain(), x, y, None, "train", 50, 1).x[:, 0])


def test_training_data_are_what_clients_hold(tmp_path):
    """Of the published rule's partition clients hold some examples twice, and others nobody holds."""
    done = feddual.run(tiny(partition__name="published", training__rounds=1), out=tmp_path / "run", progress=False)
    labels = datasets.load(done.config.dataset).y_train
    division = partition.split(labels, done.config.partition)
    held, count = set(division.indices.tolist()), len(labels)
    assert len(held) < min(len(division.indices), count)
    samples = of_run(done, images=None)
    assert samples.facts["pool"] == len(samples.y) == len(held)  # each once
    assert samples.facts["held_by_nobody"] == count - len(held)
    surface = loss_surface(done, grid=3, images=20, progress=False)
    assert f"20 training samples of the {len(held)} that clients hold (nobody holds the other " in surface.caption()
    even = feddual.run(tiny(training__rounds=1), out=tmp_path / "even", progress=False)
    assert "clients hold" not in loss_surface(even, grid=3, images=20, progress=False).caption()
    together = [of_run(one, images=20, among=[done, even]) for one in (done, even)]
    np.testing.assert_array_equal(together[0].y, together[1].y)  # runs are compared on what clients of both hold
    np.testing.assert_array_equal(together[0].x, together[1].x)


# --- inputs


def embedded(x):
    return keras.layers.Dense(4)(keras.layers.Flatten()(keras.layers.Embedding(12, 3)(x)))


def test_whole_numbers_as_inputs():
    def looked_up(x):
        return embedded(keras.layers.IntegerLookup(vocabulary=list(range(1, 12)))(x))

    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for build, dtype in ((embedded, None), (looked_up, "int64")):
        model = model_of(build, (5,), entropy, dtype)
        assert centre(model, TOKENS) == pytest.approx(evaluated(model, TOKENS), rel=1e-5)
    with pytest.raises(UserError, match=r"whole numbers .* with fractions"):
        centre(model, TOKENS + 0.5)
    far = TOKENS.copy()
    far[-1] = 12
    for size in (500, 16):  # among the first samples, and later
        with pytest.raises(UserError, match=r"x: .* = 12 is not in \[0, 12\)"):
            centre(model_of(embedded, (5,)), far, batch_size=size)


def test_inputs_that_are_not_finite_are_named():  # before: "Has training diverged?"
    odd = X.copy()
    odd[3, 2], odd[7] = np.nan, np.inf
    with pytest.raises(UserError, match="x: 2 of 80 samples hold NaN or infinite values"):
        centre(plain(), odd)
    with pytest.raises(UserError, match="y: 1 of 80 samples"):
        centre(model_of(lambda x: dense(1)(x)), y=np.where(np.arange(80) == 5, np.nan, NUMBERS), loss="mse")
