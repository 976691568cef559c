"""Designs against a semidefinite solver, brute force, bounds from elsewhere and the damage itself."""

import numpy as np
import pytest
import scipy.optimize

import momentdp as mdp
from momentdp.damage import quadratic_factor, trajectory_gram
from momentdp.dynamics.optimizers import Momentum
from momentdp.synthesize import STRUCTURES, design_factor

SPECTRUM = mdp.spectra.log_spaced(16, 100.0)  # 10^-2 .. 1


def prefix_gram(steps):
    A = np.tril(np.ones((steps, steps)))
    return A.T @ A / steps


# min tr(Q X^-1), diag X = 1, banded, by a semidefinite solver; eta lambda_max = .1, eta in Q.
SEMIDEFINITE = [
    (8, 2, 0.0, 0.1121781),
    (8, 4, 0.0, 0.0631082),
    (16, 4, 0.9, 1.240183),
    (32, 2, 0.0, 0.2212549),
    (32, 4, 0.0, 0.1212749),
]


@pytest.mark.parametrize(("steps", "bands", "mu", "optimum"), SEMIDEFINITE)
def test_solve_p1_against_a_semidefinite_solver(steps, bands, mu, optimum):
    factor = quadratic_factor(Momentum(mu), SPECTRUM, np.full(steps, 0.1))
    design = mdp.solve_p1(factor=factor, bands=bands)
    assert design.objective == pytest.approx(optimum, rel=1e-5)
    assert design.dual_bound <= optimum * (1 + 1e-5)
    assert np.abs(np.tril(design.mechanism.strategy_matrix, -bands)).max() == 0
    assert design.mechanism.sensitivity() == pytest.approx(1.0, rel=1e-12)


def test_prefix_workload_against_the_certified_optimum():
    design = mdp.solve_p1(prefix_gram(128))
    assert np.sqrt(design.objective) == pytest.approx(2.311001, rel=1e-6)
    assert design.gap < 1e-6


@pytest.mark.parametrize("bands", [None, 2])
def test_solve_p1_against_brute_force(bands):
    steps = 5
    Q = prefix_gram(steps) + np.diag([0.0, 0.3, 0.0, 0.2, 0.1])
    free = [(i, j) for i in range(steps) for j in range(i) if bands is None or i - j < bands]
    rows, columns = np.array(free).T

    def objective(entries):
        X = np.eye(steps)
        X[rows, columns] = X[columns, rows] = entries
        if np.linalg.eigvalsh(X)[0] <= 1e-9:
            return 1e6
        return np.trace(np.linalg.solve(X, Q))

    options = {"xatol": 1e-10, "fatol": 1e-12, "maxiter": 20000, "maxfev": 40000, "adaptive": True}
    start = np.full(len(free), 0.2)
    for _ in range(3):
        found = scipy.optimize.minimize(objective, start, method="Nelder-Mead", options=options)
        start = found.x
    design = mdp.solve_p1(Q, bands=bands)
    assert design.objective == pytest.approx(found.fun, rel=1e-6)
    assert design.dual_bound <= found.fun * (1 + 1e-12)


def test_no_random_strategy_is_below_the_bound():
    steps, bands = 12, 4
    design = mdp.solve_p1(prefix_gram(steps), bands=bands)
    rng = np.random.default_rng(0)
    best = np.tril(design.mechanism.strategy_matrix)
    for size in (1e-4, 1e-2, 1.0):
        for _ in range(100):
            noise = np.triu(np.tril(rng.standard_normal((steps, steps))), 1 - bands)
            C = best + size * noise
            C /= np.linalg.norm(C, axis=0)
            S = np.linalg.inv(C)
            assert np.trace(S.T @ prefix_gram(steps) @ S) >= design.dual_bound


# Floor of D_dyn (with the 1/2), T = 128, d = 16: kappa, eta lambda_max, mu, floor; and iid over it.
FLOORS = [(10.0, 0.05, 0.0, 0.00844909, 22.36), (10.0, 0.3, 0.9, 2.50634, 4.95)]


@pytest.mark.parametrize(("kappa", "el", "mu", "floor", "iid"), FLOORS)
def test_designs_lie_between_floor_and_catalogue(kappa, el, mu, floor, iid):
    home = mdp.Momentum(mu), mdp.spectra.log_spaced(16, kappa), np.full(128, el)
    found = mdp.damage_floor(*home)
    assert found == pytest.approx(floor, rel=5e-4)
    plain = mdp.damage(mdp.catalogue(128, pool=["iid"])["iid"], *home)
    assert plain / found == pytest.approx(iid, rel=1e-3)
    damages = {}
    for structure in (*STRUCTURES, "auto"):
        design = mdp.synthesize(*home, structure=structure)
        damages[structure] = mdp.damage(design.mechanism, *home)
        assert floor * (1 - 1e-6) <= damages[structure] < plain
    assert damages["auto"] == pytest.approx(min(damages.values()), rel=1e-12)
    assert damages["dense"] == pytest.approx(min(damages.values()), rel=1e-3)


def test_objective_is_twice_the_regularised_damage():
    home = mdp.Momentum(0.5), SPECTRUM, mdp.schedules.cosine(32, 0.4)
    design = mdp.synthesize(*home, structure="banded", bands=4, regularisation=0.01)
    trace = np.sum(quadratic_factor(*home) ** 2)
    extra = 0.01 * trace / 32 * np.sum(design.mechanism.noising_matrix**2)
    assert design.objective == pytest.approx(2 * mdp.damage(design.mechanism, *home) + extra)


def test_factor_of_the_trajectory_and_of_an_average():
    rates = mdp.schedules.cosine(24, 0.4)
    plain = design_factor(mdp.Momentum(0.5), SPECTRUM, rates)
    mixed = design_factor(mdp.Momentum(0.5), SPECTRUM, rates, trajectory_weight=2.0)
    added = 2.0 * trajectory_gram(mdp.Momentum(0.5), SPECTRUM, rates)
    np.testing.assert_allclose(mixed @ mixed.T, plain @ plain.T + added, rtol=0, atol=1e-12)
    errors = {"curvature": (0.5, 2.0), "momentum": (0.0, 0.9)}
    robust = design_factor(mdp.Momentum(0.5), SPECTRUM, rates, robust_to=errors)
    mean = 0
    for mu in (0.0, 0.9):
        for scale in (0.5, 2.0):
            F = quadratic_factor(Momentum(mu), SPECTRUM.scaled(scale), rates)
            mean = mean + F @ F.T / 4
    np.testing.assert_allclose(robust @ robust.T, mean, rtol=0, atol=1e-12)


def test_each_variant_is_best_at_what_it_was_made_for():
    home = mdp.Momentum(0.9), mdp.spectra.log_spaced(16, 10.0), mdp.schedules.cosine(64, 0.4)
    options = {"structure": "banded", "bands": 8, "regularisation": 1e-6}
    final = mdp.synthesize(*home, **options).mechanism
    mixed = mdp.synthesize(*home, trajectory_weight=1.0, **options).mechanism
    robust = mdp.synthesize(*home, robust_to={"curvature": (0.5, 1.0, 2.0)}, **options).mechanism

    def all_curvatures(m):
        return sum(mdp.damage(m, home[0], home[1].scaled(s), home[2]) for s in (0.5, 1.0, 2.0))

    def both(m):
        return mdp.damage(m, *home) + mdp.trajectory_damage(m, *home)

    assert mdp.damage(final, *home) < min(mdp.damage(m, *home) for m in (mixed, robust))
    assert both(mixed) < min(both(m) for m in (final, robust))
    assert all_curvatures(robust) < min(all_curvatures(m) for m in (final, mixed))


def test_refusals():
    home = mdp.Momentum(0.5), SPECTRUM, np.full(16, 0.1)
    with pytest.raises(ValueError, match="structure"):
        mdp.synthesize(*home, structure="triangular")
    with pytest.raises(ValueError, match="robust_to"):
        mdp.synthesize(*home, robust_to={"rate": (0.5,)})
    with pytest.raises(ValueError, match="trajectory_weight"):
        mdp.synthesize(*home, trajectory_weight=-1.0)
    with pytest.raises(ValueError, match="bands"):
        mdp.solve_p1(prefix_gram(4), bands=5)
    with pytest.raises(ValueError, match="floor"):
        mdp.solve_p1(prefix_gram(4), bands=2, floor=1.5)
    with pytest.raises(ValueError, match="floor"):
        mdp.solve_p1(prefix_gram(4), floor=0.1)
    with pytest.raises(ValueError, match="PSD"):
        mdp.solve_p1(np.diag([1.0, -1.0]))
    with pytest.raises(ValueError, match="symmetric"):
        mdp.solve_p1(np.array([[1.0, 1.0], [0.0, 1.0]]))


def test_a_class_without_a_bound_claims_no_gap():
    rates = mdp.schedules.constant(16, 0.3)
    design = mdp.synthesize(mdp.Momentum(0.5), [1.0, 0.1], rates, structure="toeplitz", bands=4)
    assert np.isnan(design.dual_bound) and np.isnan(design.gap)


def test_a_design_has_sixteen_bands_where_none_are_asked_for():
    rates = mdp.schedules.constant(20, 0.1)
    design = mdp.synthesize(mdp.Momentum(0.5), [1.0, 0.1], rates, structure="banded")
    assert design.mechanism.buffers == 15
