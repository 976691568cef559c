"""Clipping-aware curvature and damage against finite differences, literal matrices and Monte Carlo."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from momentdp import clipping_aware, solve_p1
from momentdp.damage import damage
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, logistic_task
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
    task = logistic_task.make_task(3, dimension=5, examples=320, batch=20, calibration=60)
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
    strategy = np.tril(rng.normal(size=(steps, steps)))
    noising = np.linalg.inv(strategy) * np.linalg.norm(strategy, axis=0).max()
    blocks = literal_transfer(jacobians, rates, momentum)
    np.testing.assert_allclose(
        clipping_aware.linearised_transfer(Momentum(momentum), jacobians, rates), blocks, rtol=1e-10
    )
    g = np.hstack(list(blocks))
    covariance = np.kron(noising @ noising.T, np.eye(d))
    expected = 0.5 * 1.7**2 * np.trace(hessian @ g @ covariance @ g.T)
    ours = clipping_aware.clipping_aware_damage(
        Mechanism.from_strategy_matrix(strategy),
        Momentum(momentum),
        jacobians,
        rates,
        loss_hessian=hessian,
        noise_multiplier=1.7,
    )
    assert ours == pytest.approx(expected, rel=1e-10)


def test_constant_jacobian_reaches_the_stationary_limit_of_the_reference():
    # i.i.d. noise, mu = .9, eta = .3, lambda = 1, sigma = 1: 0.8142857143
    iid = Mechanism.from_toeplitz(steps=600, strategy_coef=[1.0])
    found = clipping_aware.clipping_aware_damage(
        iid, Momentum(0.9), np.eye(1), np.full(600, 0.3), loss_hessian=np.eye(1)
    )
    assert found == pytest.approx(0.8142857143, rel=1e-9)


@pytest.mark.parametrize(
    "optimizer", [Momentum(0.9), Momentum(0.6, nesterov=True, weight_decay=0.05)]
)
def test_commuting_curvatures_equal_the_eigenmodes_of_damage(optimizer):
    rng = np.random.default_rng(2)
    basis = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    driving, weights = np.array([0.1, 0.2, 0.5, 1.0]), rng.uniform(0.1, 1, 4)
    m = Mechanism.from_toeplitz(steps=20, noising_coef=[1.0, -0.5, -0.125])
    rates = np.linspace(0.4, 0.1, 20)
    ours = clipping_aware.clipping_aware_damage(
        m, optimizer, basis @ np.diag(driving) @ basis.T, rates,
        loss_hessian=basis @ np.diag(weights) @ basis.T,
    )  # fmt: skip
    modes = damage(m, optimizer, driving, rates, loss_curvature=weights)
    assert ours == pytest.approx(modes, rel=1e-10)


def test_path_prediction_is_exact_for_small_noise():
    task = logistic_task.make_task(0, dimension=4, examples=512, batch=32, calibration=100)
    condition = logistic.conditions(task, el=0.5)["L1"]
    pool = {"iid": Mechanism.from_toeplitz(steps=16, strategy_coef=[1.0])}
    tiny = {"epsilon": 2e4}  # noise so small that the linearisation holds
    seeds = range(2000)
    end = logistic.train(task, pool, condition, [0], private=False)[0, 0, -1]
    moved = logistic.train(task, pool, condition, seeds, **tiny)[0, :, -1] - end
    measured = 0.5 * np.einsum("ni,ij,nj->n", moved, task.hessian(end), moved)
    predicted = analysis.predict(task, pool, condition, **tiny).loc["iid", "path"]
    assert abs(measured.mean() - predicted) < 4 * measured.std() / np.sqrt(2000)
    assert measured.std() / np.sqrt(2000) < 0.04 * predicted


@pytest.mark.parametrize(
    "optimizer", [Momentum(0.9), Momentum(0.6, nesterov=True, weight_decay=0.05)]
)
def test_path_of_a_general_loss_carries_small_noise_exactly(data, optimizer):
    """Outside generalised linear models: clipped noisy runs, step by step, against the transfer."""
    rates, start, clip_norm = np.linspace(0.3, 0.1, 10), np.array([1.2, 0.4, -0.8, 0.3]), 0.6
    shards = np.arange(40).reshape(10, 4)
    batches = tuple(part[shards] for part in data)
    gradient = jax.grad(tanh_loss)
    path, jacobians = clipping_aware.clipped_path(
        gradient, optimizer, rates, start, batches, clip_norm
    )
    assert np.abs(jacobians - jacobians.transpose(0, 2, 1)).max() > 1e-2
    noise = 1e-6 * np.random.default_rng(1).normal(size=(10, 4))
    with jax.enable_x64(True):
        compiled = jax.jit(gradient)

        def run(noise):
            mu, decay = optimizer.momentum, optimizer.weight_decay
            theta, buffer = start.copy(), np.zeros(4)
            for t, rate in enumerate(rates):
                batch = [part[t] for part in batches]
                g = clipped_mean(lambda *a: np.asarray(compiled(*a)), theta, batch, clip_norm)[0]
                g = g + noise[t] + decay * theta
                buffer = mu * buffer + g
                theta = theta - rate * (g + mu * buffer if optimizer.nesterov else buffer)
            return theta

        quiet, moved = run(np.zeros((10, 4))), run(noise)
    np.testing.assert_allclose(path[-1], quiet, rtol=1e-10)
    transfer = clipping_aware.linearised_transfer(optimizer, jacobians, rates)
    expected = np.einsum("tij,tj->i", transfer, noise)
    np.testing.assert_allclose(moved - quiet, expected, rtol=1e-4)


def test_factor_designs_for_the_damage_of_asymmetric_jacobians():
    rng = np.random.default_rng(3)
    half, jacobians = rng.normal(size=(3, 3)), 0.5 * rng.normal(size=(8, 3, 3))
    given = Momentum(0.5), jacobians, np.full(8, 0.2)
    hessian = {"loss_hessian": half @ half.T}
    F = clipping_aware.clipping_aware_factor(*given, **hessian)
    solved = solve_p1(F @ F.T)
    best = clipping_aware.clipping_aware_damage(solved.mechanism, *given, **hessian)
    assert 2 * best == pytest.approx(solved.objective, rel=1e-6)
    for strategy in ([1.0], [1.0, 0.5, 0.375]):
        other = Mechanism.from_toeplitz(steps=8, strategy_coef=strategy)
        assert clipping_aware.clipping_aware_damage(other, *given, **hessian) > best
    with pytest.raises(ValueError, match="loss_hessian: got eigenvalue -1"):
        clipping_aware.clipping_aware_factor(*given, loss_hessian=-np.eye(3))


def test_repeated_participation_raises_the_damage_by_its_sensitivity():
    m = Mechanism.from_toeplitz(steps=6, strategy_coef=[1.0, 0.5])
    given = (m, Momentum(0.0), np.eye(2), np.full(6, 0.2))
    single, twice = (
        clipping_aware.clipping_aware_damage(*given, loss_hessian=np.eye(2), **pattern)
        for pattern in ({}, {"min_sep": 3, "max_participations": 2})
    )
    assert twice == pytest.approx(2 * single)  # two columns of C apart do not overlap


def test_bad_input_is_refused():
    eye = np.eye(2)
    with pytest.raises(ValueError, match="clip_norm: got 0"):
        clipping_aware.clipped_jacobian(tanh_loss, np.ones(2), (np.ones((1, 1)),), 0)
    with pytest.raises(ValueError, match="batches: got leading sizes 3"):
        clipping_aware.clipped_path(
            tanh_loss, Momentum(0.0), np.ones(4), np.ones(2), (np.ones((3, 1)),), 1.0
        )
    with pytest.raises(ValueError, match="jacobians: got shape"):
        clipping_aware.linearised_transfer(Momentum(0.0), np.zeros((3, 2, 2)), np.ones(4))
    m = Mechanism.from_toeplitz(steps=3, strategy_coef=[1.0])
    with pytest.raises(ValueError, match="horizon 3"):
        clipping_aware.clipping_aware_damage(m, Momentum(0.0), eye, np.ones(4), loss_hessian=eye)
    with pytest.raises(ValueError, match="loss_hessian"):
        clipping_aware.clipping_aware_damage(
            m, Momentum(0.0), eye, np.ones(3), loss_hessian=np.eye(3)
        )
