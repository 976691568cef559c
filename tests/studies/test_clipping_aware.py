"""Clipping-aware curvature and damage against finite differences, literal matrices and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from momentdp.studies import clipping_aware, logistic
from momentdp.studies import logistic_analysis as analysis


def tanh_loss(theta, x, y):
    """Not a generalised linear model: two parameters multiply inside a tanh."""
    return 0.5 * (theta[0] * jnp.tanh(theta[1:] @ x) - y) ** 2


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return rng.normal(size=(40, 3)), rng.normal(size=40)


def clipped_mean(gradient, theta, data, clip_norm):
    each = np.stack([gradient(theta, x, y) for x, y in zip(*data, strict=True)])
    norms = np.linalg.norm(each, axis=1)
    return (each * np.minimum(1, clip_norm / norms)[:, None]).mean(axis=0), norms


def finite_difference(gradient, theta, data, clip_norm, h=1e-6):
    steps = h * np.eye(len(theta))
    return np.stack(
        [
            (clipped_mean(gradient, theta + s, data, clip_norm)[0]
             - clipped_mean(gradient, theta - s, data, clip_norm)[0]) / (2 * h)
            for s in steps
        ],
        axis=1,
    )  # fmt: skip


def test_logistic_jacobian_equals_finite_differences_and_drops_clipped_examples(data):
    x, y = data[0], (data[1] > 0).astype(float)
    theta, clip_norm = np.array([0.3, -0.2, 0.5]), 0.7

    def gradient(theta, x, y):
        return (1 / (1 + np.exp(-x @ theta)) - y) * x

    ours = clipping_aware.clipped_jacobian(
        jax.grad(logistic.example_loss), theta, (x, y), clip_norm
    )
    np.testing.assert_allclose(
        ours, finite_difference(gradient, theta, (x, y), clip_norm), atol=1e-8
    )
    norms = clipped_mean(gradient, theta, (x, y), clip_norm)[1]
    p = 1 / (1 + np.exp(-x @ theta))
    weight = p * (1 - p) * (norms <= clip_norm)
    assert 0 < (norms > clip_norm).sum() < 40
    np.testing.assert_allclose(ours, x.T @ (x * weight[:, None]) / 40, atol=1e-12)


def test_general_jacobian_equals_finite_differences_and_is_not_symmetric(data):
    theta, clip_norm = np.array([1.2, 0.4, -0.8, 0.3]), 0.6
    gradient = jax.grad(tanh_loss)
    with jax.enable_x64(True):
        compiled = jax.jit(gradient)
        expected = finite_difference(
            lambda *args: np.asarray(compiled(*args)), theta, data, clip_norm
        )
    ours = clipping_aware.clipped_jacobian(gradient, theta, data, clip_norm)
    np.testing.assert_allclose(ours, expected, atol=1e-8)
    assert np.abs(ours - ours.T).max() > 1e-2


def test_clipped_mean_gradient_equals_that_of_training_even_at_zero_gradients():
    task = logistic.make_task(3, dimension=5, examples=320, steps=16, calibration=60)
    x, y = task.features[task.shards[0]].copy(), task.labels[task.shards[0]]
    x[0] = 0.0  # an example without any gradient
    with jax.enable_x64(True):
        theta, x, y = jnp.linspace(-1, 1, 5), jnp.asarray(x), jnp.asarray(y)
        theirs = logistic.clipped_gradient(task.clip_norm, 20)(theta, x, y)
        ours = clipping_aware.clipped_mean_gradient(
            jax.grad(logistic.example_loss), theta, (x, y), task.clip_norm
        )
    np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    jacobian = clipping_aware.clipped_jacobian(
        jax.grad(logistic.example_loss), theta, (x, y), task.clip_norm
    )
    assert np.isfinite(jacobian).all()


def literal_transfer(jacobians, rates, momentum):
    """Products of the 2d x 2d state matrices of theory.md, eq. 2."""
    d, steps = jacobians.shape[-1], len(rates)
    eye = np.eye(d)
    blocks = []
    for t in range(steps):
        product = np.vstack([-rates[t] * eye, eye])
        for s in range(t + 1, steps):
            top = [eye - rates[s] * jacobians[s], -rates[s] * momentum * eye]
            product = np.block([top, [jacobians[s], momentum * eye]]) @ product
        blocks.append(product[:d])
    return np.stack(blocks)


def test_linearised_damage_equals_the_literal_formula_for_moving_asymmetric_jacobians():
    rng = np.random.default_rng(1)
    steps, d, momentum = 7, 3, 0.8
    jacobians = rng.normal(size=(steps, d, d))
    rates = rng.uniform(0.1, 0.5, steps)
    half = rng.normal(size=(d, d))
    hessian = half @ half.T
    noising = np.tril(rng.normal(size=(steps, steps)))
    blocks = literal_transfer(jacobians, rates, momentum)
    np.testing.assert_allclose(
        clipping_aware.linearised_transfer(jacobians, rates, momentum), blocks, rtol=1e-10
    )
    g = np.hstack(list(blocks))
    covariance = np.kron(noising @ noising.T, np.eye(d))
    expected = 0.5 * 1.7**2 * np.trace(hessian @ g @ covariance @ g.T)
    ours = clipping_aware.linearised_damage(noising, jacobians, hessian, rates, momentum, 1.7)
    assert ours == pytest.approx(expected, rel=1e-10)


def test_constant_jacobian_reaches_the_stationary_limit_of_the_reference():
    # i.i.d. noise, mu = .9, eta = .3, lambda = 1, sigma = 1: 0.8142857143
    found = clipping_aware.linearised_damage(
        np.eye(600), np.eye(1), np.eye(1), np.full(600, 0.3), 0.9
    )
    assert found == pytest.approx(0.8142857143, rel=1e-9)


def test_path_prediction_is_exact_for_small_noise():
    task = logistic.make_task(0, dimension=4, examples=512, steps=16, calibration=100)
    condition = logistic.conditions(task, el=0.5)["L1"]
    pool = {"iid": np.eye(16)}
    tiny = {"epsilon": 2e4}  # noise so small that the linearisation holds
    seeds = range(4000)
    path = analysis.noise_free_path(task, condition)
    last = logistic.train(task, pool, condition, seeds, **tiny)[0, :, -1] - path[-1]
    measured = 0.5 * np.einsum("ni,ij,nj->n", last, task.hessian(path[-1]), last)
    predicted = analysis.predict(task, pool, condition, **tiny).loc["iid", "path"]
    assert abs(measured.mean() - predicted) < 4 * measured.std() / np.sqrt(4000)
    assert measured.std() / np.sqrt(4000) < 0.02 * predicted


def test_bad_input_is_refused():
    eye = np.eye(2)
    with pytest.raises(ValueError, match="clip_norm: got 0"):
        clipping_aware.clipped_jacobian(tanh_loss, np.ones(2), (np.ones((1, 1)),), 0)
    with pytest.raises(ValueError, match="jacobians: got shape"):
        clipping_aware.linearised_transfer(np.zeros((3, 2, 2)), np.ones(4), 0.0)
    with pytest.raises(ValueError, match="momentum: got 1.0"):
        clipping_aware.linearised_transfer(eye, np.ones(4), 1.0)
    with pytest.raises(ValueError, match="noising_matrix: got shape"):
        clipping_aware.linearised_damage(np.eye(3), eye, eye, np.ones(4), 0.0)
    with pytest.raises(ValueError, match="hessian"):
        clipping_aware.linearised_damage(np.eye(4), eye, np.eye(3), np.ones(4), 0.0)
