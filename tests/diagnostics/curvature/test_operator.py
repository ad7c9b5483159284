"""Second derivatives: what is known by hand, finite differences in float64, scales, layers, and what is refused."""

import numpy as np
import pytest

import diagnostics
from diagnostics.landscape import Landscape
from feddual import models
from feddual._lazy import keras, tf
from feddual.errors import UserError
from feddual.functional.layout import assign
from feddual.functional.network import taken
from tests.diagnostics.surfaces.test_kinds_of_model import KINDS

RNG = np.random.default_rng(4)
X = RNG.normal(size=(60, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 60)


@pytest.fixture
def doubles():
    """Models built in float64."""
    policy = keras.config.dtype_policy()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy(policy)


def mlp(activation="tanh", hidden=8, inputs=6, outputs=4):
    keras.utils.set_random_seed(3)
    names = [
        keras.layers.Dense(hidden, activation, name="one"),
        keras.layers.Dense(hidden, activation, name="two"),
        keras.layers.Dense(outputs, name="three"),
    ]
    return keras.Sequential([keras.Input((inputs,)), *names])


def shaken(model, scale=0.1):
    """Weights nowhere on a kink: biases that are zero leave a relu on one where nothing comes in."""
    rng = np.random.default_rng(8)
    for variable in model.trainable_variables:
        variable.assign(np.asarray(variable) + scale * rng.normal(size=variable.shape))
    return model


def landscape(model, x=X, y=Y, **more):
    return Landscape(model, x, y, images=None, batch_size=17, **more)


def slope(curvature, weights):
    """The gradient by a plain tape at a float64 vector, in one batch."""
    objective, entries = curvature.landscape.objective, curvature.entries
    tensors = {entry.path: tf.constant(taken(weights, entry)) for entry in entries}
    with tf.GradientTape() as tape:
        tape.watch(list(tensors.values()))
        whole = tf.constant(weights)
        values = lambda entry: tensors.get(entry.path, taken(whole, entry))  # noqa: E731
        count = len(objective.x)
        loss = tf.reduce_sum(objective.batch_losses_at(values, 0, count)[0]) / count
    found = tape.gradient(loss, list(tensors.values()), unconnected_gradients="zero")
    return np.concatenate([np.ravel(tf.convert_to_tensor(one)) for one in found])


def apart(curvature, step=1e-6):
    """How far a product is from the gradient's central differences, relative to the product."""
    vector = np.random.default_rng(2).normal(size=curvature.size)
    vector /= np.linalg.norm(vector)
    weights, along = curvature.landscape.weights.astype(np.float64), curvature.vector(vector)
    wanted = (slope(curvature, weights + step * along) - slope(curvature, weights - step * along)) / (2 * step)
    np.testing.assert_allclose(curvature.gradient(), slope(curvature, weights), atol=1e-12)
    return np.linalg.norm(curvature.matvec(vector) - wanted) / np.linalg.norm(wanted)


# --- known by hand


def test_the_hessian_of_a_linear_model_under_mse_is_the_second_moment_of_its_inputs():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    targets = RNG.normal(size=60)
    with_one = np.c_[X, np.ones(60)].astype(np.float64)
    wanted = 2 * with_one.T @ with_one / 60
    for kind in ("hessian", "ggn"):
        found = landscape(model, y=targets, loss="mse").curvature(kind)
        np.testing.assert_allclose(found.dense(), wanted, rtol=1e-4, atol=1e-5)


def test_a_product_is_the_mean_over_samples_whatever_the_batches():
    model = mlp()
    vector = RNG.normal(size=Landscape(model, X, Y).curvature().size)
    products = [Landscape(model, X, Y, images=None, batch_size=n).curvature().matvec(vector) for n in (7, 60, 500)]
    np.testing.assert_allclose(products[1:], [products[0]] * 2, rtol=1e-4, atol=1e-6)


def test_the_ggn_is_the_hessian_of_a_linear_softmax_model():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    found = landscape(model)
    np.testing.assert_allclose(found.curvature("ggn").dense(), found.curvature().dense(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"sample_weight": np.linspace(0, 2, 60)}, {"logit_norm": True}])
def test_the_ggn_has_no_negative_eigenvalue_and_the_hessian_has(more):
    found = landscape(mlp(), **more)
    ggn, hessian = (np.linalg.eigvalsh(found.curvature(kind).dense()) for kind in ("ggn", "hessian"))
    assert ggn[0] > -1e-6 * ggn[-1]
    assert hessian[0] < -1e-2 * hessian[-1]


def test_the_ggn_leaves_out_what_a_model_is_penalised_for():
    penalised = mlp()
    penalised.get_layer("one").kernel_regularizer = keras.regularizers.L2(0.5)
    with_it, without = (landscape(penalised, regularisation=flag) for flag in (True, False))
    same = [one.curvature("ggn").dense() for one in (with_it, without)]
    np.testing.assert_allclose(*same, atol=1e-5)
    change = with_it.curvature(layers=["one"]).dense() - without.curvature(layers=["one"]).dense()
    np.testing.assert_allclose(change, np.diag([1.0] * 48 + [0.0] * 8), atol=1e-4)


# --- finite differences

QUICK = (
    "dense", "layer normalisation", "depthwise convolution", "convolution of a series", "embedding", "softmax",
    "regularisation",
)  # fmt: skip
DIFFERENT = [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in KINDS]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize("name", DIFFERENT)
def test_products_are_differences_of_the_gradient_whatever_the_model(name):
    build, x, y, loss, options = KINDS[name]
    inputs = keras.Input(x.shape[1:], dtype=options.get("dtype"))
    model = shaken(keras.Model(inputs, build(inputs)))
    model.compile(loss=loss() if callable(loss) else loss, jit_compile=False)
    more = {"sample_weight": options.get("weights"), "regularisation": options.get("regularisation", False)}
    assert apart(landscape(model, x, y, **more).curvature()) < 1e-7


SHIPPED = [
    ("lenet5", (28, 28, 1), {}),
    ("mlp", (28, 28, 1), {}),
    pytest.param("lenet_published", (28, 28, 1), {}, marks=pytest.mark.slow),
    pytest.param("vgg_small", (16, 16, 3), {}, marks=pytest.mark.slow),
    pytest.param("vgg_small", (16, 16, 3), {"batch_norm": True}, marks=pytest.mark.slow),
    pytest.param("vgg16", (32, 32, 3), {"weights": "random"}, marks=pytest.mark.slow),  # its head, on features
]


@pytest.mark.usefixtures("doubles")
@pytest.mark.parametrize(("name", "shape", "options"), SHIPPED)
def test_products_are_differences_of_the_gradient_of_shipped_models(name, shape, options):
    model = shaken(getattr(models, name)(shape, 10, **options), 0.02)
    images, labels = RNG.normal(size=(20, *shape)), RNG.integers(0, 10, 20)
    found = landscape(model, images, labels)
    assert (found.objective.network.prefix is not None) == (name == "vgg16")
    assert apart(found.curvature(), 1e-7) < 1e-6


# --- scales and layers


@pytest.mark.parametrize("scale", ["filter", "abs"])
def test_a_scaled_operator_is_the_hessian_between_two_diagonals(scale):
    model = shaken(mlp())
    found = landscape(model).curvature(scale=scale)
    whole = landscape(model).curvature().dense()[np.ix_(found.indices, found.indices)]
    kernels = [np.asarray(model.get_layer(name).kernel, np.float64) for name in ("one", "two", "three")]
    if scale == "filter":
        kernels = [np.ones_like(k) * np.sqrt((k**2).sum(0) / len(k)) for k in kernels]
    by_hand = np.concatenate([np.abs(kernel).ravel() for kernel in kernels])
    np.testing.assert_allclose(found.scaling, by_hand, rtol=1e-6)
    np.testing.assert_allclose(found.dense(), by_hand[:, None] * whole * by_hand, rtol=1e-3, atol=1e-6)


def test_a_layer_is_a_block():
    found = landscape(mlp())
    whole, part = found.curvature(), found.curvature(layers=["two"])
    np.testing.assert_allclose(part.dense(), whole.dense()[np.ix_(part.indices, part.indices)], atol=1e-6)
    assert list(whole.blocks) == ["one", "two", "three"]
    np.testing.assert_array_equal(whole.blocks["two"], part.indices)


def test_biases_move_on_a_scale_when_they_are_included():
    found = landscape(shaken(mlp()))
    assert found.curvature(scale="filter").size == 6 * 8 + 8 * 8 + 8 * 4
    assert found.curvature(scale="filter", include=["bias"]).size == found.curvature().size


def test_rescaling_layers_of_a_relu_network_changes_the_hessian_but_not_the_filter_scaled_one():
    model = mlp("relu")
    twin = keras.models.clone_model(model)
    for layer, factor in zip(("one", "three"), (5.0, 0.2), strict=True):
        twin.get_layer(layer).kernel.assign(factor * model.get_layer(layer).kernel)
    twin.get_layer("two").kernel.assign(model.get_layer("two").kernel)
    filtered, plain = (
        [np.linalg.eigvalsh(landscape(one).curvature(scale=scale).dense()) for one in (model, twin)]
        for scale in ("filter", "none")
    )
    np.testing.assert_allclose(*filtered, rtol=1e-3, atol=1e-5)
    assert plain[1][-1] > 2 * plain[0][-1]


def test_the_frozen_prefix_makes_no_difference():
    keras.utils.set_random_seed(1)
    frozen = keras.layers.Conv2D(3, 3, activation="relu", trainable=False)
    layers = [keras.Input((6, 6, 2)), frozen, keras.layers.Flatten(), keras.layers.Dense(4)]
    model, images = keras.Sequential(layers), RNG.normal(size=(60, 6, 6, 2)).astype(np.float32)
    cached, plain = (landscape(model, images, engine=engine) for engine in ("auto", "plain"))
    assert cached.objective.network.prefix is not None
    assert plain.objective.network.prefix is None
    vector = RNG.normal(size=cached.curvature().size)
    np.testing.assert_allclose(
        cached.curvature().matvec(vector), plain.curvature().matvec(vector), rtol=1e-4, atol=1e-6
    )


# --- the operator


def test_scipy_takes_it():
    from scipy.sparse.linalg import eigsh

    found = landscape(mlp()).curvature()
    wanted = np.linalg.eigvalsh(found.dense())[-1]
    assert eigsh(found.as_linear_operator(), 1, which="LA", return_eigenvectors=False)[0] == pytest.approx(wanted, 1e-4)


def test_products_are_counted_and_the_model_is_left_alone():
    model = mlp()
    before = [np.array(one) for one in model.get_weights()]
    found = diagnostics.Curvature(landscape(model))
    found.matvec(np.ones(found.size))
    assert found.products == 1
    assert found.seconds > 0
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_curvature_is_taken_where_the_landscape_stands():
    """Weights that the model had when the landscape was made."""
    model = mlp()
    first = landscape(model)
    wanted = first.curvature().dense()
    assign(model, 2 * first.weights)
    np.testing.assert_array_equal(first.curvature().dense(), wanted)


def test_what_has_no_curvature_is_refused():
    found = landscape(mlp())
    for arguments, words in (
        ({"kind": "fisher"}, "kind"), ({"scale": "layer"}, "scale"), ({"layers": ["four"]}, "layers: four"),
        ({"scale": "filter", "include": ["all"]}, "include"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            found.curvature(**arguments)
    with pytest.raises(UserError, match="bn"):
        landscape(keras.Sequential([keras.Input((6,)), keras.layers.BatchNormalization(), keras.layers.Dense(4)]),
                  bn="recalibrate").curvature()  # fmt: skip
    with pytest.raises(UserError, match=r"'ggn' is for cross-entropy from logits and mse.*huber"):
        landscape(mlp(outputs=1), y=RNG.normal(size=60), loss="huber").curvature("ggn")


@pytest.mark.parametrize("how", ["bilinear", "bicubic"])
def test_an_operation_without_a_second_derivative_is_named(how):
    layers = [keras.layers.Conv2D(2, 3), keras.layers.UpSampling2D(3, interpolation=how), keras.layers.Conv2D(1, 3)]
    model = keras.Sequential([keras.Input((6, 6, 2)), *layers, keras.layers.Flatten(), keras.layers.Dense(4)])
    with pytest.raises(UserError, match=r"without a second derivative.*Resize"):
        landscape(model, RNG.normal(size=(60, 6, 6, 2)).astype(np.float32)).curvature()
