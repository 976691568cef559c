"""Tables, pairs, predictions and the decomposition against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from momentdp.damage import damage, quadratic_factor
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, logistic_task
from momentdp.studies import logistic_analysis as analysis
from momentdp.synthesize import solve_p1


@pytest.fixture
def results():
    # b - a is 1, 1, 1.3 seed by seed, although the seeds themselves differ by far more
    rows = {"a": [1.0, 5.0, 9.0], "b": [2.0, 6.0, 10.3], "c": [0.0, 9.0, 3.0]}
    frame = pd.DataFrame(rows).T.rename_axis("mechanism")
    return pd.concat({"L0": frame}, names=["condition"])


def test_table_has_means_paired_errors_and_ranks(results):
    found = analysis.table(results).loc["L0"]
    assert list(found.index) == ["c", "a", "b"] and list(found["rank"]) == [1, 2, 3]
    np.testing.assert_allclose(found["mean"], [4.0, 5.0, 6.1])
    assert found.loc["a", "se"] == pytest.approx(4 / np.sqrt(3))
    assert found.loc["a", "gap_to_best"] == pytest.approx(1.0)
    assert found.loc["a", "gap_se"] == pytest.approx(np.std([1, -4, 6], ddof=1) / np.sqrt(3))


@pytest.fixture(scope="module")
def task():
    return logistic_task.make_task(3, dimension=5, examples=320, batch=20, calibration=60)


def test_decomposition_adds_up_and_names_each_source(task):
    condition = logistic.conditions(task)["L1"]
    pool = {"iid": Mechanism.from_toeplitz(steps=16, strategy_coef=[1.0])}
    found = analysis.decompose(task, pool, condition, range(6)).loc["iid"]
    parts = found[["path", "sampling", "clipping", "privacy"]].sum()
    runs = logistic.study(task, pool, {"L1": condition}, range(6))
    assert parts == pytest.approx(runs.to_numpy().mean(), rel=1e-9)
    assert found["privacy_se"] == pytest.approx(runs.iloc[0].sem(), rel=1e-9)
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


def test_scores_and_closure_stand_beside_the_damages(task):
    condition = logistic.conditions(task)["L2"]
    pool = {"iid": Mechanism.from_toeplitz(steps=16, strategy_coef=[1.0])}
    found = analysis.predict(task, pool, condition, epsilon=1e4).loc["iid"]
    assert found["static"] == pytest.approx((1 + 16) / 2)  # mean over t of t + 1 unit variances
    rates = condition.learning_rates
    assert found["lr_aware"] == pytest.approx(np.cumsum(rates**2).mean())
    # with hardly any noise the closure is the linearised damage of the actual path
    assert found["closure"] == pytest.approx(found["path"], rel=0.02)


def test_designs_win_by_the_prediction_they_are_made_for(task):
    condition = logistic.conditions(task)["L1"]
    made = analysis.design(task, condition)  # 16 bands of 16: every class is all of them
    assert all(m.sensitivity() == pytest.approx(1) for m in made.values())
    root = {"sqrt": Mechanism.from_toeplitz(steps=16, noising_coef=[1.0, -0.5, -0.125, -0.0625])}
    found = analysis.predict(task, made | root, condition)
    by_curvature, by_path = found["calibration"], found["public_path"]
    assert by_curvature.nsmallest(2).index.tolist() == ["synthesised", "synthesised_banded"]
    assert by_path.idxmin() == "synthesised_path" and by_path["sqrt"] > 1.1 * by_path.min()


def test_the_robust_design_averages_over_three_curvatures(task):
    """Twin: problem P1 of the three factors side by side, H_cal / 4, H_cal / 2 and H_cal."""
    optimizer, rates = logistic.conditions(task)["L1"]
    found = analysis.design(task, logistic.Condition(optimizer, rates))["synthesised_robust"]
    values = np.linalg.eigvalsh(task.calibration_hessian()).clip(0)
    factors = [quadratic_factor(optimizer, share * values, rates) for share in (0.25, 0.5, 1.0)]
    Q = sum(factor @ factor.T for factor in factors) / 3
    again = solve_p1(Q, bands=16, regularisation=1e-3).mechanism
    np.testing.assert_allclose(found.noising_matrix, again.noising_matrix, atol=1e-5)
