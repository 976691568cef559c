"""Dense P1 and its dual: certified values, brute force, jax-privacy, bounds that hold."""

import itertools

import numpy as np
import pytest
import scipy.optimize

from momentdp.synthesis.banded import solve_banded
from momentdp.synthesis.certificate import banded_bound
from momentdp.synthesis.dense import nuclear_bound, nuclear_value, participation_bound, solve_dense
from momentdp.synthesis.problem import banded_factor, diagonals_of


def prefix(steps):
    A = np.tri(steps)
    return A.T @ A / steps


@pytest.mark.parametrize(("steps", "root_error"), [(128, 2.311001), (256, 2.524415)])
def test_prefix_optimum_is_the_certified_one(steps, root_error):
    solution = solve_dense(prefix(steps))
    assert solution.converged and solution.gap <= 1e-6
    assert np.sqrt(solution.objective) == pytest.approx(root_error, abs=1e-6)
    C = solution.strategy_matrix
    np.testing.assert_allclose(np.linalg.norm(C, axis=0), 1, rtol=1e-12)
    assert np.array_equal(C, np.tril(C))
    B = np.tri(steps) @ np.linalg.inv(C)
    assert np.mean(np.sum(B**2, axis=1)) == pytest.approx(solution.objective, rel=1e-10)


def test_not_above_jax_privacy():
    """Its dense.optimize(128) stops at 5.342262, 2.9e-4 above (benchmarks run it)."""
    solution = solve_dense(prefix(128))
    assert solution.objective < 5.342262
    assert 5.342262 / solution.objective - 1 == pytest.approx(2.9e-4, rel=0.02)


def test_kalinin_andersson_optimum():
    """Workload A diag(chi), chi = 0.1^(t/127): optimal root error 1.405198 (reference table)."""
    workload = np.tri(128) * 0.1 ** (np.arange(128) / 127)
    solution = solve_dense(workload.T @ workload / 128)
    assert np.sqrt(solution.objective) == pytest.approx(1.405198, abs=1e-6)


@pytest.mark.parametrize("regularisation", [0.0, 0.01])
def test_against_brute_force(regularisation):
    """BFGS with numerical gradients over lower-triangular factors, T = 4."""
    rng = np.random.default_rng(3)
    F = rng.standard_normal((4, 4))
    Q = F @ F.T
    full = Q + regularisation * np.trace(Q) / 4 * np.eye(4)
    i, j = np.tril_indices(4)

    def objective(entries):
        C = np.zeros((4, 4))
        C[i, j] = entries
        C = C / np.linalg.norm(C, axis=0)
        return np.sum(np.linalg.solve(C.T, np.linalg.cholesky(full)) ** 2)

    point = np.eye(4)[i, j]
    for _ in range(5):
        point = scipy.optimize.minimize(objective, point, method="BFGS").x
    solution = solve_dense(Q, regularisation=regularisation)
    assert solution.objective == pytest.approx(objective(point), rel=1e-6)


def test_momentum_workload_converges_in_few_sweeps():
    response = np.cumsum(0.9 ** np.arange(128))
    A = np.array([[response[i - j] if i >= j else 0.0 for j in range(128)] for i in range(128)])
    solution = solve_dense(A.T @ A / 128)
    assert solution.gap <= 1e-8 and solution.iterations <= 15


@pytest.mark.parametrize(
    ("el", "momentum", "floor"), [(0.05, 0.0, 0.00844909), (0.3, 0.9, 2.50634)]
)
def test_floor_of_the_final_loss(final_loss, el, momentum, floor):
    """Reference floors (with the 1/2); a better search may end up to 5e-4 higher."""
    F = final_loss(128, 10, el, momentum)
    lower, upper = nuclear_bound(F)
    assert floor * (1 - 1e-6) <= lower / 2 <= floor * (1 + 5e-4)
    assert upper == pytest.approx(lower, rel=1e-5)
    solution = solve_dense(factor=F)
    assert solution.gap < 1e-5 and solution.dual_bound == pytest.approx(lower, rel=1e-5)
    assert "no minimiser" in solution.warnings[0] and solution.lambda_min < 1e-5


@pytest.mark.parametrize("rank", [2, 6])
def test_random_feasible_points_never_fall_below_the_bounds(feasible, rank):
    """Far from the optimum and close to it (mixtures with it are feasible too)."""
    rng = np.random.default_rng(rank)
    F = rng.standard_normal((6, rank))
    cases = [(6, solve_dense(factor=F))]
    cases += [(bands, solve_banded(factor=F, bands=bands)) for bands in (1, 2, 4)]
    for bands, solution in cases:
        best = solution.strategy_matrix.T @ solution.strategy_matrix
        bound = max(solution.dual_bound, nuclear_bound(F)[0])
        assert 0 < bound <= solution.objective
        for weight in np.repeat([1e-4, 1e-2, 0.3, 1.0], 50):
            X = (1 - weight) * best + weight * feasible(rng, 6, bands)
            assert np.sum(F * np.linalg.solve(X, F)) >= bound * (1 - 1e-9)


@pytest.mark.parametrize("bands", [2, 4])
@pytest.mark.parametrize("ridge", [0.0, 0.1])
def test_any_point_gives_a_banded_bound(feasible, bands, ridge):
    rng = np.random.default_rng(bands)
    F = rng.standard_normal((6, 6))
    regularisation = ridge * 6 / np.sum(F**2)
    best = solve_banded(factor=F, bands=bands, regularisation=regularisation, tolerance=1e-9)
    tight = banded_bound(best.factor, F, ridge)
    assert tight == pytest.approx(best.objective, rel=1e-6)
    for weight in np.repeat([1e-3, 1e-2, 0.1, 1.0], 30):
        X = best.strategy_matrix.T @ best.strategy_matrix
        X = (1 - weight) * X + weight * feasible(rng, 6, bands)
        C = banded_factor(diagonals_of(X, bands))
        assert banded_bound(C, F, ridge) <= best.objective * (1 + 1e-9)


def test_floor_of_a_long_run_needs_no_square_matrix():
    """20,000 steps: a square matrix would take 3 GB. Small rows and directions change nothing."""
    decay = np.exp(-np.arange(20_000)[::-1, None] / np.array([300.0, 1000.0, 3000.0]))
    floor, ceiling = nuclear_bound(decay, tolerance=1e-3)
    assert ceiling * (1 - 1e-3) <= floor <= ceiling
    padded = np.vstack([np.full((50, 4), 1e-200), np.pad(decay, ((0, 0), (0, 1)))])
    assert nuclear_bound(padded, tolerance=1e-3)[0] == pytest.approx(floor, rel=1e-9)


def test_participation_bound_is_reached_where_all_steps_are_alike():
    """F = I, min_sep b, k = T / b participations: X = I / k is optimal, tr X^-1 = T k."""
    assert participation_bound(np.eye(12), 3, 4) == pytest.approx(48.0)
    assert participation_bound(np.eye(12), 12, 1) == pytest.approx(12.0)
    assert participation_bound(np.eye(12), 1, 2) == pytest.approx(24.0)  # any two steps


@pytest.mark.parametrize(("min_sep", "participations"), [(2, 3), (1, 2), (3, 2)])
def test_no_strategy_is_below_the_participation_bound(min_sep, participations):
    """A random descent over strategies, scaled by the heaviest admissible set of columns, which is
    at most their sensitivity: it ends above the bound, and within a factor of two of it."""
    steps, rng = 6, np.random.default_rng(min_sep)
    F = np.cumsum(rng.normal(size=(steps, 2)), axis=0)
    bound = participation_bound(F, min_sep, participations)
    sets = [
        list(chosen)
        for chosen in itertools.combinations(range(steps), participations)
        if min(np.diff(chosen)) >= min_sep
    ]
    best, lowest = np.eye(steps), np.inf
    for number in range(3000):
        C = best + np.tril(rng.normal(size=(steps, steps))) * 0.3 * 0.998**number
        squares = np.sum(C**2, axis=0)
        value = max(squares[chosen].sum() for chosen in sets) * np.sum(np.linalg.solve(C.T, F) ** 2)
        if value < lowest:
            best, lowest = C, value
    assert bound <= lowest < 2 * bound


def test_any_weights_give_a_bound():
    rng = np.random.default_rng(0)
    F = rng.standard_normal((6, 6))
    solution = solve_dense(factor=F)
    X = solution.strategy_matrix.T @ solution.strategy_matrix
    best = np.diag(np.linalg.solve(X, F) @ np.linalg.solve(X, F).T)
    assert nuclear_value(F, best) == pytest.approx(solution.objective, rel=1e-6)
    for v in best * rng.lognormal(sigma=0.2, size=(50, 6)):
        assert nuclear_value(F, v) <= solution.objective


def test_zero_rows_cost_nothing():
    """A step whose noise never reaches the loss (rate zero) drops out of the problem."""
    F = np.random.default_rng(1).standard_normal((5, 5))
    padded = np.insert(F, 2, 0.0, axis=0)
    whole = solve_dense(factor=F).objective
    assert nuclear_bound(padded)[0] == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"Q": np.array([[1.0, 0.5], [0.0, 1.0]])}, "asymmetric"),
        ({"Q": np.diag([1.0, -1.0])}, "smallest eigenvalue"),
        ({"Q": np.ones((2, 3))}, "shape"),
        ({"Q": np.diag([1.0, np.nan])}, "finite"),
        ({"Q": np.zeros((3, 3))}, "zeros"),
        ({}, "exactly one"),
        ({"Q": np.eye(2), "factor": np.eye(2)}, "exactly one"),
        ({"Q": np.eye(2), "regularisation": -1.0}, "regularisation"),
    ],
)
def test_bad_input_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        solve_dense(**arguments)


def test_stopping_early_is_said():
    solution = solve_dense(prefix(16), max_iterations=1)
    assert not solution.converged and "stopped at gap" in solution.warnings[-1]
    assert solution.dual_bound <= 3.0**2 and solution.objective >= solution.dual_bound
