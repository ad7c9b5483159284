import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from sklearn import metrics

from feddual import api
from feddual.training.engine import worker_view
from feddual.training.evaluation import Evaluator, classification_metrics, public_code_metrics
from feddual.training.workbench import workbench
from tests.helpers import tiny


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(20, 80))
def test_metrics_equal_scikit_learn(seed, num_classes, count):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, count)])
    logits = np.round(rng.normal(size=(len(labels), num_classes)) + 1.5 * np.eye(num_classes)[labels], 1).astype(
        np.float32
    )
    found = classification_metrics(logits, labels, num_classes)
    predicted = logits.argmax(1)
    probabilities = softmax(logits.astype(np.float64), axis=1)
    recalls = metrics.recall_score(labels, predicted, average=None, zero_division=0)
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "loss": metrics.log_loss(labels, probabilities, labels=range(num_classes)),
        "balanced_accuracy": metrics.balanced_accuracy_score(labels, predicted),
        "macro_f1": metrics.f1_score(labels, predicted, average="macro", zero_division=0),
        "kappa": metrics.cohen_kappa_score(labels, predicted),
        "mcc": metrics.matthews_corrcoef(labels, predicted),
        "auc": np.mean([metrics.roc_auc_score(labels == c, probabilities[:, c]) for c in range(num_classes)]),
        "g_mean": np.prod(recalls) ** (1 / num_classes),
        "per_class_accuracy": recalls.tolist(),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-9), name


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(20, 80))
def test_the_public_codes_averages_equal_its_calls_of_scikit_learn(seed, num_classes, count):
    rng = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, count)])
    logits = np.round(rng.normal(size=(len(labels), num_classes)) + 1.5 * np.eye(num_classes)[labels], 1)
    found, predicted = public_code_metrics(logits, labels, num_classes), logits.argmax(1)
    g_means = []
    for label in range(num_classes):
        table = metrics.confusion_matrix(labels == label, predicted == label, labels=[False, True])
        (tn, fp), (fn, tp) = table
        g_means.append(np.sqrt(tp / (tp + fn) * tn / (tn + fp)))
    probabilities = softmax(logits, axis=1)
    areas = [metrics.roc_auc_score(labels == label, probabilities[:, label]) for label in range(num_classes)]
    expected = {
        "weighted_f1": metrics.f1_score(labels, predicted, average="weighted", zero_division=0),
        "weighted_precision": metrics.precision_score(labels, predicted, average="weighted", zero_division=0),
        "weighted_recall": metrics.recall_score(labels, predicted, average="weighted", zero_division=0),
        "weighted_auc": np.average(areas, weights=np.bincount(labels)),
        "g_mean_one_vs_rest": np.prod(g_means) ** (1 / num_classes),
    }
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_the_two_ways_to_average_differ_by_hand():
    """Four examples of class 0, answered rightly; two of class 1, one of them answered 0."""
    labels, predicted = np.array([0, 0, 0, 0, 1, 1]), np.array([0, 0, 0, 0, 0, 1])
    logits = np.eye(2)[predicted]
    ours, theirs = (measure(logits, labels, 2) for measure in (classification_metrics, public_code_metrics))
    f1 = [8 / 9, 2 / 3]  # precisions 4/5 and 1, recalls 1 and 1/2
    assert ours["macro_f1"] == pytest.approx(np.mean(f1))
    assert theirs["weighted_f1"] == pytest.approx((4 * f1[0] + 2 * f1[1]) / 6)
    assert ours["g_mean"] == pytest.approx(np.sqrt(1 / 2))  # of the recalls
    assert theirs["g_mean_one_vs_rest"] == pytest.approx(np.sqrt(1 / 2))  # sqrt(1 * 1/2), for both classes
    three = np.eye(3)[[0, 0, 1, 2]]
    ours, theirs = (
        measure(three, np.array([0, 1, 1, 2]), 3) for measure in (classification_metrics, public_code_metrics)
    )
    assert ours["g_mean"] == pytest.approx((1 * 1 / 2 * 1) ** (1 / 3))
    assert theirs["g_mean_one_vs_rest"] == pytest.approx((np.sqrt(2 / 3) * np.sqrt(1 / 2) * 1) ** (1 / 3))


def test_the_public_codes_metrics_are_recorded_when_asked_for(tmp_path):
    plain = api.run(tiny(training__rounds=1), out=tmp_path / "plain", progress=False)
    both = api.run(tiny(training__rounds=1, evaluation__metrics="all"), out=tmp_path / "both", progress=False)
    added = set(both.metrics.columns) - set(plain.metrics.columns)
    assert added == {"weighted_f1", "weighted_precision", "weighted_recall", "weighted_auc", "g_mean_one_vs_rest"}
    assert both.metrics["macro_f1"].tolist() == plain.metrics["macro_f1"].tolist()


def test_perfect_and_constant_answers():
    labels = np.array([0, 1, 2, 0])
    perfect = classification_metrics(10 * np.eye(3)[labels], labels, 3)
    assert [perfect[key] for key in ("accuracy", "kappa", "mcc", "auc", "g_mean", "macro_f1")] == pytest.approx(
        [1.0] * 6
    )
    constant = classification_metrics(np.tile([1.0, 0, 0], (4, 1)), labels, 3)
    assert (constant["accuracy"], constant["kappa"], constant["mcc"], constant["g_mean"]) == (0.5, 0, 0, 0)


def test_a_class_that_does_not_occur_and_values_that_are_not_finite():
    found = classification_metrics(np.eye(3)[[0, 1]], np.array([0, 1]), 3)
    assert found["per_class_accuracy"] == [1.0, 1.0, None]
    assert found["balanced_accuracy"] == 1.0
    broken = classification_metrics(np.array([[np.nan, 0], [0, 1.0]]), np.array([0, 1]), 2)
    assert broken["accuracy"] == 0.5
    assert np.isnan(broken["loss"])
    assert broken["auc"] is None


@pytest.mark.parametrize("batch_size", [1, 7, 60, 500])
def test_the_evaluator_sees_every_example_once_whatever_the_batch(batch_size):
    bench = workbench(worker_view(tiny()))
    x, y = bench.federation.test()
    evaluator = Evaluator(bench.training.forward, x, y, batch_size)
    logits = evaluator.logits(bench.initial_weights())
    found = classification_metrics(logits, y, 4)
    for parts in (1, 2, 7, 100):
        pieces = [evaluator.logits(bench.initial_weights(), *part) for part in evaluator.slices(parts)]
        assert (np.concatenate(pieces) == logits).all()  # in bits
    expected = classification_metrics(bench.network.model(x).numpy(), y, 4)
    assert found.pop("per_class_accuracy") == expected.pop("per_class_accuracy")
    assert found == pytest.approx(expected, rel=1e-5)
