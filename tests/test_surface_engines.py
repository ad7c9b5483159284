"""How points are computed must not show in them: several directions, frozen layers, workers, kills, losses."""

import numpy as np
import pytest

from diagnostics.directions import Space
from diagnostics.surface import loss_lines
from tests.test_surface import QUIET, X, Y, mlp


@pytest.mark.parametrize("parts", [(["two"], ["one"]), (["one"], ["two"], ["one", "bias"])])
def test_lines_that_move_different_layers(parts):
    model = mlp()
    model.get_layer("one").bias.assign(np.linspace(-1, 1, 8))
    space = Space(model)
    directions = [space.random(index=index, layers=part[:1], include=part[1:]) for index, part in enumerate(parts)]
    options = {"directions": directions, "grid": 5, **QUIET}
    fast = loss_lines(model, X, Y, **options)
    assert fast.meta["facts"]["engine"] == "linearity + dense suffix"
    np.testing.assert_allclose(fast.loss, loss_lines(model, X, Y, engine="plain", **options).loss, rtol=1e-5)
