"""Tables of recorded forgetting: means over clients and runs by hand, and the pictures that show them."""

import numpy as np
import pandas as pd
import pytest

from diagnostics.forgetting import measures, reading
from figures.charts import averaging

COLUMNS = ["round", "client", "class", "quantity", "value"]


def frame(*rows):
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.astype({"client": "Int64", "class": "Int64", "value": float})


ONE = frame(
    (1, None, 0, "accuracy_before", 0.5), (1, None, 1, "accuracy_before", 1.0),
    (1, 3, 0, "accuracy_after", 0.2), (1, 3, 1, "accuracy_after", 0.4),
    (1, 8, 0, "accuracy_after", 0.4), (1, 8, 1, "accuracy_after", 0.0),
    (1, None, 0, "accuracy_aggregated", 0.6), (1, None, 1, "accuracy_aggregated", 0.7),
    (1, 3, 0, "forgotten", 0.3), (1, 8, 0, "forgotten", 0.1), (1, 3, 1, "forgotten", 0.6), (1, 8, 1, "forgotten", 1.0),
    (1, 3, None, "accuracy_lacking", 0.1), (1, 8, None, "accuracy_lacking", np.nan),
    (2, None, 0, "accuracy_before", 0.0), (2, None, 1, "accuracy_before", 0.0),
)  # fmt: skip
TWO = frame((1, 5, 0, "forgotten", 0.6), (1, 5, 1, "forgotten", 0.0), (1, 5, None, "accuracy_lacking", 0.3))


def test_by_class_is_a_mean_over_clients_and_then_over_runs():
    assert reading.by_class([ONE], "forgotten").to_numpy() == pytest.approx(np.array([[0.2], [0.8]]))
    assert reading.by_class([ONE, TWO], "forgotten").to_numpy() == pytest.approx(np.array([[0.4], [0.4]]))
    assert reading.by_class([ONE], "accuracy_before").columns.tolist() == [1, 2]
    assert reading.by_class([], "forgotten").empty


def test_the_whole_round_is_before_less_aggregated():
    assert reading.by_class([ONE], "whole")[1].tolist() == pytest.approx([-0.1, 0.3])


def test_over_rounds_leaves_out_who_has_no_value():
    table = reading.over_rounds([ONE, TWO], "accuracy_lacking")
    assert table.to_numpy().tolist() == [[0.1, 0.3]]
    assert reading.over_rounds([ONE], "ece").empty


def test_bins_are_pooled_by_their_examples_and_errors_averaged():
    one, two = (measures.Reliability(*map(np.array, arrays)) for arrays in (
        ([1, 0], [0.4, np.nan], [1.0, np.nan]), ([3, 4], [0.2, 0.8], [0.0, 0.5])
    ))  # fmt: skip
    table, error = reading.pooled([one.table, two.table])
    assert table["count"].tolist() == [4, 4]
    assert table["confidence"].tolist() == pytest.approx([0.25, 0.8])
    assert table["accuracy"].tolist() == pytest.approx([0.25, 0.5])
    assert error == pytest.approx((0.6 + (3 * 0.2 + 4 * 0.3) / 7) / 2)
    assert np.isnan(reading.pooled([])[1])


def test_the_scale_of_changes_is_white_at_nothing():
    scale = averaging.change_scale([reading.by_class([ONE], "forgotten")])
    assert (scale.low, scale.high) == (pytest.approx(-0.8), pytest.approx(0.8))


@pytest.mark.parametrize("backend", ["matplotlib", "plotly"])
def test_both_back_ends_draw_all_of_it(backend):
    runs = {"a": [ONE], "b": [ONE, TWO], "nothing": []}
    bins = measures.reliability(np.array([[2.0, 1], [0, 3]]), np.array([0, 0])).table
    drawn = [averaging.changes(runs), averaging.stages(runs), averaging.reliability({"a": [bins], "nothing": []})]
    drawn += [averaging.lines(runs, about) for about in averaging.LINES]
    assert all(chart.draw(backend) for chart in drawn)
    change = averaging.changes(runs).panels[0].marks[0]
    assert change.values.tolist() == reading.by_class([ONE], "forgotten").to_numpy().tolist()
