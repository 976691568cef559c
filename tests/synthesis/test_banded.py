"""Banded P1: semidefinite reference values, infima, floor, certificate, gradients."""

import numpy as np
import pytest
import scipy.optimize

from momentdp.synthesis import banded as banded_module
from momentdp.synthesis.banded import solve_banded
from momentdp.synthesis.blocks import BandedObjective
from momentdp.synthesis.dense import solve_dense
from momentdp.synthesis.problem import dense_from_diagonals, gram_diagonals


@pytest.mark.parametrize(
    ("steps", "bands", "momentum", "optimum"),
    [
        (8, 2, 0.0, 0.1121781),
        (8, 4, 0.0, 0.0631082),
        (16, 4, 0.9, 1.240183),
        (32, 2, 0.0, 0.2212549),
        (32, 4, 0.0, 0.1212749),
    ],
)
def test_semidefinite_reference_values(final_loss, steps, bands, momentum, optimum):
    solution = solve_banded(factor=final_loss(steps, 100, 0.1, momentum), bands=bands)
    assert solution.objective == pytest.approx(optimum, rel=1e-5)
    assert solution.dual_bound <= optimum * (1 + 1e-6)
    assert solution.gap <= 1e-3


@pytest.mark.parametrize(
    ("condition_number", "el", "infimum"),
    [(10, 0.1, 9.05494), (10, 0.4, 6.92413), (100, 0.1, 6.26908), (100, 0.4, 4.51415)],
)
def test_reference_infima_at_128(final_loss, condition_number, el, infimum):
    F = final_loss(128, condition_number, el, 0.0) / el
    solution = solve_banded(factor=F, bands=16, certify=False)
    assert solution.objective == pytest.approx(infimum, rel=1e-4)
    assert solution.lambda_min < 1e-3 and "no minimiser" in solution.warnings[0]


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_regularised_problem_is_certified(final_loss, momentum):
    F = final_loss(128, 10, 0.4, momentum)
    solution = solve_banded(factor=F, bands=16, regularisation=1e-3)
    assert solution.converged and solution.gap <= 1e-6 and not solution.warnings
    S = np.linalg.inv(solution.strategy_matrix)
    ridge = 1e-3 * np.sum(F**2) / 128
    assert solution.objective == pytest.approx(
        np.sum((S.T @ F) ** 2) + ridge * np.sum(S**2), rel=1e-10
    )
    if momentum == 0:  # choices.md: 0.4 to 2.8% above the infimum, lambda_min .02 to .06
        unregularised = np.sum((S.T @ F) ** 2) / 0.4**2
        assert 1.0035 < unregularised / 6.92413 < 1.0285
        assert 0.02 < solution.lambda_min < 0.06


def test_floor_holds_exactly_and_costs_little(final_loss):
    F = final_loss(128, 10, 0.1, 0.0) / 0.1
    solution = solve_banded(factor=F, bands=16, floor=1e-3)
    assert solution.lambda_min >= 1e-3 * (1 - 1e-9)
    assert 9.05494 < solution.objective < 9.05494 * 1.0001
    C = solution.strategy_matrix
    assert np.linalg.eigvalsh(C.T @ C)[0] >= 1e-3 * (1 - 1e-6)
    assert any("ignores the floor" in text for text in solution.warnings)


def test_prefix_band_is_certified_and_below_jax_privacy():
    """jax-privacy's bandmf_mean has MeanSE 7.945 (choices.md)."""
    A = np.tri(128)
    solution = solve_banded(A.T @ A / 128, bands=16)
    assert solution.converged and solution.gap <= 1e-6
    assert 7.944 < solution.objective < 7.9455


def test_whole_band_equals_dense_and_one_band_the_identity():
    Q = np.tri(24).T @ np.tri(24)
    whole = solve_banded(Q, bands=24)
    assert whole.objective == pytest.approx(solve_dense(Q).objective, rel=1e-6)
    np.testing.assert_allclose(solve_banded(Q, bands=1).strategy_matrix, np.eye(24))


@pytest.mark.parametrize(("bands", "floor"), [(2, 0.0), (3, 0.0), (3, 0.1)])
def test_against_brute_force(bands, floor):
    """SLSQP over the free entries of X itself, T = 5."""
    rng = np.random.default_rng(bands)
    F = rng.standard_normal((5, 5))
    i, j = np.tril_indices(5, -1)
    free = i - j < bands

    def X(entries):
        M = np.eye(5)
        M[i[free], j[free]] = M[j[free], i[free]] = entries
        return M

    def objective(entries):
        if np.linalg.eigvalsh(X(entries))[0] < max(floor, 1e-6) - 1e-9:
            return 1e6
        return np.sum(F * np.linalg.solve(X(entries), F))

    options = {"maxiter": 40000, "maxfev": 40000, "xatol": 1e-10, "fatol": 1e-12, "adaptive": True}
    point = np.zeros(free.sum())
    for _ in range(4):
        point = scipy.optimize.minimize(objective, point, method="Nelder-Mead", options=options).x
    solution = solve_banded(factor=F, bands=bands, floor=floor)
    assert solution.objective <= objective(point) * (1 + 1e-6)
    assert solution.objective >= objective(point) * (1 - 1e-4)


@pytest.mark.parametrize(("steps", "bands"), [(7, 3), (12, 4), (5, 1), (6, 6), (21, 5)])
@pytest.mark.parametrize("floor", [0.0, 0.2])
def test_value_and_gradient_against_the_literal_formula(steps, bands, floor):
    rng = np.random.default_rng(steps)
    F = rng.standard_normal((steps, 3))
    objective = BandedObjective(F, 0.7, floor, bands)
    C = np.where(objective.inside, 0.3 * rng.standard_normal((bands, steps)), 0.0)
    C[0] = 1 + rng.random(steps)

    def literal(diagonals):
        matrix = sum(np.diag(d[: steps - k], -k) for k, d in enumerate(diagonals))
        K = np.linalg.inv((1 - floor) * matrix.T @ matrix + floor * np.eye(steps))
        return np.trace(K @ F @ F.T) + 0.7 * np.trace(K)

    value, gradient = objective(C)
    assert value == pytest.approx(literal(C), rel=1e-12)
    assert not gradient[~objective.inside].any()
    for _ in range(5):
        direction = np.where(objective.inside, rng.standard_normal(C.shape), 0.0)
        slope = (literal(C + 1e-6 * direction) - literal(C - 1e-6 * direction)) / 2e-6
        assert np.sum(gradient * direction) == pytest.approx(slope, rel=1e-6, abs=1e-6 * value)


def test_metric_windows_are_those_of_the_dense_matrices():
    """With no ridge, row i of the metric is G + (C G C')_ii K on the window i - b + 1 .. i."""
    rng = np.random.default_rng(0)
    steps, bands = 11, 3
    F = rng.standard_normal((steps, 4))
    objective = BandedObjective(F, 0.0, 0.0, bands)
    C = np.where(objective.inside, 0.3 * rng.standard_normal((bands, steps)), 0.0)
    C[0] = 1.0
    C /= np.linalg.norm(C, axis=0)
    dense = dense_from_diagonals(C)
    K = np.linalg.inv(dense.T @ dense)
    G = K @ F @ F.T @ K
    M = objective.metric(C)
    for i in range(bands - 1, steps):
        at = slice(i - bands + 1, i + 1)
        expected = G[at, at] + (dense @ G @ dense.T)[i, i] * K[at, at]
        np.testing.assert_allclose(M[i], expected, rtol=1e-9)


def test_interruption_returns_the_best_feasible_point(final_loss, monkeypatch):
    F = final_loss(32, 10, 0.1, 0.0)
    calls = []
    literal = BandedObjective.__call__

    def interrupting(self, C):
        calls.append(1)
        if len(calls) == 60:
            raise KeyboardInterrupt
        return literal(self, C)

    monkeypatch.setattr(banded_module.BandedObjective, "__call__", interrupting)
    solution = solve_banded(factor=F, bands=8, regularisation=1e-3)
    assert not solution.converged and "interrupted" in solution.warnings[0]
    np.testing.assert_allclose(gram_diagonals(solution.factor)[0], 1, rtol=1e-12)
    assert solution.dual_bound <= solution.objective < np.sum(F**2) * 1.001


def test_warm_start_is_used(final_loss):
    F = final_loss(64, 10, 0.4, 0.0)
    cold = solve_banded(factor=F, bands=8, regularisation=1e-3)
    warm = solve_banded(factor=F, bands=8, regularisation=1e-3, start=cold.factor)
    assert warm.objective <= cold.objective * (1 + 1e-9)
    assert warm.iterations < cold.iterations / 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bands": 0}, "bands"),
        ({"bands": 9}, "bands: got 9; pass at most steps = 8"),
        ({"floor": 1.0}, "floor"),
        ({"floor": 1.5}, "floor"),
        ({"floor": -0.1}, "floor"),
        ({"regularisation": np.nan}, "regularisation"),
        ({"start": np.full((2, 8), np.nan)}, "start"),
        ({"start": np.ones((2, 7))}, "start"),
        ({"start": np.zeros((2, 8))}, "start"),
    ],
)
def test_bad_input_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        solve_banded(**({"Q": np.eye(8), "bands": 2} | change))
