"""The paper's Adam against optax, and what choices.md found about its iterates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from momentdp.synthesis.adam import solve_adam
from momentdp.synthesis.banded import solve_banded


def test_steps_equal_optax(final_loss):
    F = final_loss(8, 100, 0.1, 0.0)
    rows = np.concatenate([np.arange(k, 8) for k in (1, 2)])
    columns = np.concatenate([np.arange(8 - k) for k in (1, 2)])
    start = 0.05 * np.random.default_rng(0).standard_normal(len(rows))

    def matrix(entries):
        return jnp.eye(8).at[rows, columns].set(entries).at[columns, rows].set(entries)

    def loss(entries):
        X = matrix(entries)
        smallest = jnp.linalg.eigvalsh(X)[0]
        penalty = jnp.where(smallest < 0.2, 1e6 * (0.2 - smallest) ** 2, 0.0)
        return jnp.sum(F * jnp.linalg.solve(X, F)) + penalty

    with jax.enable_x64(True):
        entries, adam = jnp.asarray(start), optax.adam(0.02)
        state = adam.init(entries)
        gradient = jax.jit(jax.grad(loss))
        for _ in range(40):
            updates, state = adam.update(gradient(entries), state)
            entries = optax.apply_updates(entries, updates)
        expected = np.asarray(matrix(entries))
    _, last, objective = solve_adam(factor=F, bands=3, iterations=40, floor=0.2)
    np.testing.assert_allclose(last, expected, atol=1e-6)
    assert objective == pytest.approx(np.sum(F * np.linalg.solve(expected, F)), rel=1e-5)


def test_best_feasible_iterate_at_128(final_loss):
    """choices.md: 1.03 to 1.9 x above the infimum, feasible, reached in the first few hundred."""
    F = final_loss(128, 10, 0.4, 0.0) / 0.4
    best, _, last = solve_adam(factor=F, bands=16, iterations=250)
    assert 1.02 < best.objective / 6.92413 < 2.0
    assert best.lambda_min >= 1e-3
    C = best.strategy_matrix
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, rtol=1e-12)
    assert np.sum(np.linalg.solve(C.T, F) ** 2) == pytest.approx(best.objective, rel=1e-8)
    moved = solve_adam(
        factor=F,
        bands=16,
        iterations=250,
        start=0.05 * np.random.default_rng(0).standard_normal(1800) * (1 + 1e-14),
    )[0]
    assert moved.objective == pytest.approx(best.objective, rel=1e-4)
    assert not best.converged and np.isnan(best.dual_bound)


def test_the_papers_solver_is_above_the_optimum(final_loss):
    """choices.md: 1 to 7% high at T = 32, the paper's 0.9 and 4.7%."""
    F = final_loss(32, 100, 0.1, 0.0) / 0.1
    best, _, _ = solve_adam(factor=F, bands=4)
    bound = solve_banded(factor=F, bands=4).dual_bound
    assert 1.005 < best.objective / bound < 1.07


def test_nothing_feasible_is_said():
    best, _, _ = solve_adam(np.eye(4), bands=2, iterations=1, floor=0.999, start=np.ones(3))
    assert "identity" in best.warnings[-1] and best.objective == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bands": 5}, "bands"),
        ({"start": np.ones(4)}, "start"),
        ({"start": np.array([1.0, np.inf, 0.0])}, "start"),
        ({"floor": 1.2}, "floor"),
        ({"iterations": 0}, "iterations"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        solve_adam(**({"Q": np.eye(4), "bands": 2} | change))
