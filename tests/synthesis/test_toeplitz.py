"""Few-coefficient Toeplitz classes against the reference table, jax-privacy and literal sums."""

import numpy as np
import pytest

from momentdp.synthesis import toeplitz
from momentdp.synthesis.toeplitz import optimize_inverse_banded, optimize_toeplitz


def root_errors(C):
    """(mean, max) root error of the prefix workload at sensitivity 1."""
    C = C / np.linalg.norm(C, axis=0).max()
    per_query = np.sum((np.tri(len(C)) @ np.linalg.inv(C)) ** 2, axis=1)
    return np.sqrt(per_query.mean()), np.sqrt(per_query.max())


@pytest.mark.parametrize(
    ("objective", "mean", "largest"),
    [("mean", 2.8725541219, 3.6645135315), ("max", 2.8984026270, 3.6345646498)],
)
def test_banded_toeplitz_reference(objective, mean, largest):
    solution = optimize_toeplitz(128, coefs=16, objective=objective)
    assert solution.converged
    assert root_errors(solution.strategy_matrix) == pytest.approx((mean, largest), rel=2e-8)


@pytest.mark.parametrize(("objective", "loss"), [("mean", 1.0018), ("max", 1.0065)])
def test_monotone_coefficients(objective, loss):
    """The reference table's inverse-banded row is where jax-privacy's optimiser stops: it bounds
    the sensitivity by the nonincreasing majorant of C's column. The optimum with nonincreasing C
    is 1e-4 (mean) and 3e-4 (max) below, that of the whole class 0.2 and 0.7%."""
    free = optimize_inverse_banded(128, objective=objective)
    monotone = optimize_inverse_banded(128, objective=objective, monotone=True)
    column = monotone.strategy_matrix[:, 0]
    assert np.all(np.diff(column) <= 1e-9) and column[-1] >= 0
    assert np.sqrt(monotone.objective / free.objective) == pytest.approx(loss, abs=5e-4)


@pytest.mark.parametrize(("objective", "at"), [("mean", 2.4153848844), ("max", 2.6902239067)])
def test_inverse_banded_is_not_above_the_reference(objective, at):
    for monotone in (False, True):
        solution = optimize_inverse_banded(128, objective=objective, monotone=monotone)
        error = root_errors(solution.strategy_matrix)[objective == "max"]
        assert error**2 == pytest.approx(solution.objective, rel=1e-9)
        assert 0.993 * at < error <= at


def test_max_and_last_are_one_objective():
    first, second = (optimize_inverse_banded(32, coefs=4, objective=o) for o in ("max", "last"))
    np.testing.assert_array_equal(first.factor, second.factor)


@pytest.mark.parametrize("solver", [optimize_toeplitz, optimize_inverse_banded])
@pytest.mark.parametrize("regularisation", [0.0, 0.01])
def test_any_quadratic_objective(solver, regularisation, final_loss):
    """objective = tr((Q + eps tr(Q)/T I) X^-1), and no small change of a coefficient improves."""
    F = final_loss(24, 10, 0.3, 0.9)
    solution = solver(factor=F, coefs=4, regularisation=regularisation)
    ridge = regularisation * np.sum(F**2) / 24

    def literal(first_column, inverse):
        M = np.array([np.pad(first_column, (j, 0))[:24] for j in range(24)]).T
        C, S = (np.linalg.inv(M), M) if inverse else (M, np.linalg.inv(M))
        return np.max(np.sum(C**2, axis=0)) * (np.sum((S.T @ F) ** 2) + ridge * np.sum(S**2))

    inverse = solver is optimize_inverse_banded
    c = np.pad(solution.factor, (0, 20))
    assert literal(c, inverse) == pytest.approx(solution.objective, rel=1e-9)
    for k in range(1, 4):
        for change in (1e-3, -1e-3):
            moved = c.copy()
            moved[k] += change
            assert literal(moved, inverse) > solution.objective


def test_long_runs_take_the_same_optimum_without_ffts(monkeypatch):
    """The quadratic form in few coefficients against the FFT over the whole factor."""
    factor = np.random.default_rng(0).normal(size=(40, 3)).cumsum(axis=0)
    options = {"factor": factor, "coefs": 6, "regularisation": 0.01}
    whole = optimize_inverse_banded(**options)
    monkeypatch.setattr(toeplitz, "LONG", 0)
    few = optimize_inverse_banded(**options)
    assert few.objective == pytest.approx(whole.objective, rel=1e-10)
    np.testing.assert_allclose(few.factor, whole.factor, rtol=1e-5)


def test_factor_and_named_objective_agree():
    F = np.tri(64).T / 8
    for solver in (optimize_toeplitz, optimize_inverse_banded):
        named, given = solver(64, coefs=5), solver(factor=F, coefs=5)
        assert given.objective == pytest.approx(named.objective, rel=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 8, "objective": "median"}, "objective"),
        ({"steps": 0}, "steps"),
        ({"steps": 8, "coefs": 0}, "coefs"),
        ({"steps": 7, "Q": np.eye(8)}, "steps: got 7"),
        ({"Q": -np.eye(8)}, "smallest eigenvalue"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        optimize_inverse_banded(**arguments)
