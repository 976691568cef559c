"""The moment closure against exact limits and against simulation."""

import numpy as np
import pytest

from momentdp.clipping_aware import clipping_aware_damage
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, logistic_analysis, logistic_task, moment_closure


@pytest.fixture(scope="module")
def task():
    return logistic_task.make_task(0, dimension=4, examples=512, batch=32, calibration=100)


@pytest.fixture(scope="module")
def m():
    return Mechanism.from_toeplitz(steps=16, noising_coef=[1.0, -0.5, -0.125], name="bisr")


def test_without_noise_the_mean_is_the_training_path(task, m):
    rates = np.full(16, 2.0)
    optimizer = Momentum(0.8, nesterov=True, weight_decay=0.05)
    condition = logistic.Condition(optimizer, rates)
    mean, covariance = moment_closure.closed_moments(task, m, condition, 0.0)
    path = logistic.train(task, {"m": m}, condition, [0], private=False)[0, 0]
    np.testing.assert_allclose(mean, path[-1], rtol=1e-10)
    assert not covariance.any()


def test_small_noise_has_the_linearised_covariance(task, m):
    condition = logistic.conditions(task, el=0.5)["L3"]
    jacobians, hessian = logistic_analysis.path_curvature(task, condition)
    covariance = moment_closure.closed_moments(task, m, condition, 1e-7)[1]
    linear = clipping_aware_damage(
        m, condition.optimizer, jacobians, condition.learning_rates,
        loss_hessian=hessian, noise_multiplier=1e-7,
    )  # fmt: skip
    assert 0.5 * np.sum(hessian * covariance) == pytest.approx(linear, rel=1e-5)


def test_moments_and_excess_with_clipping_and_loud_noise_equal_the_simulated_ones(task, m):
    condition, loud = logistic.conditions(task, el=0.2)["L1"], {"epsilon": 1.0}
    last = logistic.train(task, {"m": m}, condition, range(2000), **loud)[0, :, -1]
    stddev = logistic.noise_stddev(task, **loud)
    mean, covariance = moment_closure.closed_moments(task, m, condition, stddev)
    error = last.std(axis=0) / np.sqrt(2000)
    assert np.all(np.abs(last.mean(axis=0) - mean) < 4 * error)
    np.testing.assert_allclose(np.cov(last.T).trace(), covariance.trace(), rtol=0.07)
    excess = task.excess(last)
    predicted = moment_closure.closed_excess(task, m, condition, **loud)
    assert abs(excess.mean() - predicted) < 4 * excess.std() / np.sqrt(2000) < 0.1 * predicted
    # noise has moved the mean itself, which no prediction along the noise-free path can see
    quiet = logistic.train(task, {"m": m}, condition, [0], private=False)[0, 0, -1]
    assert np.abs((quiet - mean) / error).max() > 5
