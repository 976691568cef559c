"""Tables, pairs, predictions and the decomposition against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from momentdp.damage import damage
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, logistic_task
from momentdp.studies import logistic_analysis as analysis


@pytest.fixture
def results():
    # b - a is 1, 1, 1.3 seed by seed, although the seeds themselves differ by far more
    values = {"a": [1.0, 5.0, 9.0], "b": [2.0, 6.0, 10.3], "c": [0.0, 9.0, 3.0]}
    rows = [("L0", m, s, v) for m, column in values.items() for s, v in enumerate(column)]
    return pd.DataFrame(rows, columns=["condition", "mechanism", "noise_seed", "excess"])


def test_table_has_means_paired_errors_and_ranks(results):
    found = analysis.table(results).loc["L0"]
    assert list(found.index) == ["c", "a", "b"] and list(found["rank"]) == [1, 2, 3]
    np.testing.assert_allclose(found["mean"], [4.0, 5.0, 6.1])
    assert found.loc["a", "se"] == pytest.approx(4 / np.sqrt(3))
    assert found.loc["a", "gap_to_best"] == pytest.approx(1.0)
    assert found.loc["a", "gap_se"] == pytest.approx(np.std([1, -4, 6], ddof=1) / np.sqrt(3))


def test_pairs_are_resolved_by_pairing_only(results):
    found = analysis.pairs(results, "L0").set_index(["a", "b"])
    assert found.loc[("a", "b"), "difference"] == pytest.approx(-1.1)
    assert found.loc[("a", "b"), "se"] == pytest.approx(0.1)
    t = scipy.stats.ttest_rel([1.0, 5.0, 9.0], [2.0, 6.0, 10.3]).statistic
    assert found.loc[("a", "b"), "difference"] / 0.1 == pytest.approx(t)
    assert list(found.resolved) == [True, False, False]
    assert not analysis.pairs(results, "L0", paired=False).resolved.any()
    with pytest.raises(ValueError, match="condition: got 'L9'"):
        analysis.pairs(results, "L9")


def test_kendall_by_hand():
    predicted = pd.DataFrame({"good": [1.0, 2.0, 3.0], "one_swap": [2.0, 1.0, 3.0]}, list("abc"))
    found = analysis.kendall(predicted, pd.Series({"c": 30.0, "b": 20.0, "a": 10.0}))
    np.testing.assert_allclose(found[["good", "one_swap"]], [1.0, 1 / 3])


@pytest.fixture(scope="module")
def task():
    return logistic_task.make_task(3, dimension=5, examples=320, steps=16, calibration=60)


def test_decomposition_adds_up_and_names_each_source(task):
    condition = logistic.conditions(task)["L1"]
    pool = {"iid": Mechanism.from_toeplitz(steps=16, strategy_coef=[1.0])}
    found = analysis.decompose(task, pool, condition, range(6)).loc["iid"]
    parts = found[["path", "sampling", "clipping", "privacy"]].sum()
    runs = logistic.study(task, pool, {"L1": condition}, range(6))
    assert parts == pytest.approx(runs.excess.mean(), rel=1e-9)
    assert found["privacy_se"] == pytest.approx(runs.excess.sem(), rel=1e-9)
    loose = analysis.decompose(task._replace(clip_norm=1e6), pool, condition, range(2)).loc["iid"]
    assert loose["clipping"] == 0 and loose["sampling"] == pytest.approx(found["sampling"])


def test_predictions_use_the_curvature_they_name(task):
    condition = logistic.conditions(task)["L2"]
    pool = {"iid": Mechanism.from_toeplitz(steps=16, strategy_coef=[1.0])}
    found = analysis.predict(task, pool, condition).loc["iid"]
    x = task.calibration_features
    h_cal = x.T @ x / (4 * len(x))
    unclipped = np.linalg.norm(x, axis=1) / 2 <= task.clip_norm
    h_eff = x[unclipped].T @ x[unclipped] / (4 * len(x))
    iid, rest = pool["iid"], (condition.learning_rates,)
    sigma = {"noise_multiplier": logistic.noise_stddev(task)}
    same = damage(iid, Momentum(0.9), np.linalg.eigvalsh(h_cal), *rest, **sigma)
    assert found["calibration"] == pytest.approx(same, rel=1e-10)
    driving, basis = np.linalg.eigh(h_eff)
    weights = np.diag(basis.T @ h_cal @ basis)
    two = damage(iid, Momentum(0.9), driving, *rest, loss_curvature=weights, **sigma)
    assert found["clipped"] == pytest.approx(two, rel=1e-10)


def test_without_clipping_the_path_sees_the_plain_hessian(task):
    loose = task._replace(clip_norm=1e6)
    condition = logistic.conditions(task)["L0"]
    jacobians, last = analysis.path_curvature(loose, condition, public=True)
    x, y = task.calibration_features, task.calibration_labels
    theta = np.zeros(5)
    for jacobian, rate in zip(jacobians, condition.learning_rates, strict=True):
        p = 1 / (1 + np.exp(-x @ theta))
        expected = x.T @ (x * (p * (1 - p))[:, None]) / len(x)
        np.testing.assert_allclose(jacobian, expected, rtol=1e-9, atol=1e-14)
        theta = theta - rate * x.T @ (p - y) / len(x)
    np.testing.assert_allclose(last, task.calibration_hessian(theta), rtol=1e-9, atol=1e-14)
