"""The identity grid of B.3: its size, its bound, and that the identity is special to mu = 0."""

import itertools

import numpy as np
import pytest

from momentdp.damage import damage
from momentdp.dynamics import spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import identity


@pytest.fixture(scope="module")
def grid():
    return identity.grid()


def test_the_grid_is_the_papers(grid):
    """B.3: T in {8, 32, 128}, six spectra, four step sizes; eight mechanisms make it 576."""
    assert len(grid) == 3 * 6 * 4 * 8 == 576
    assert not grid.duplicated(["steps", "spectrum", "el", "mechanism"]).any()
    assert set(grid["steps"]) == {8, 32, 128}
    assert set(grid["el"]) == {0.05, 0.1, 0.3, 0.6}


def test_every_pair_of_computations_agrees(grid):
    """The paper's bound is 1e-10. What it reports as its worst, 9.7e-16, is not asked for: the
    three routes round differently."""
    worst = identity.worst_errors(grid)
    assert len(worst) == 3
    assert worst.max() < 1e-10
    for first, second in itertools.combinations(identity.COMPUTATIONS, 2):
        difference = (grid[first] / grid[second] - 1).abs().max()
        assert worst[f"{first} / {second}"] == pytest.approx(difference)


def test_independent_noise_on_one_curvature_is_a_geometric_sum(grid):
    """D = (eta^2 / 2) d lambda sum_k (1 - eta lambda)^(2k), lambda = 1, d = 16."""
    rows = grid[(grid["mechanism"] == "iid") & (grid["spectrum"] == "isotropic")]
    assert len(rows) == 12
    shrink = (1 - rows["el"]) ** 2
    expected = 8 * rows["el"] ** 2 * (1 - shrink ** rows["steps"]) / (1 - shrink)
    for computation in identity.COMPUTATIONS:
        np.testing.assert_allclose(rows[computation], expected, rtol=1e-12)


def test_the_criterion_knows_no_momentum():
    """The published objective is D_dyn at mu = 0 only: at mu = 0.1 it is off by far."""
    spectrum, rates = spectra.log_spaced(16, 10.0), np.full(32, 0.3)
    m = Mechanism.from_toeplitz(steps=32, strategy_coef=[1.0, 0.5]).normalized()
    objective = identity.published_objective(m, spectrum, 0.3)
    assert objective == pytest.approx(damage(m, Momentum(0.0), spectrum, rates), rel=1e-13)
    assert abs(objective / damage(m, Momentum(0.1), spectrum, rates) - 1) > 0.05


def test_the_printed_formula_loses_digits_where_solves_do_not():
    """tr(X^-1 V'MV) through X itself squares the condition number of C."""
    spectrum = spectra.log_spaced(16, 10.0)
    m = Mechanism.from_toeplitz(steps=64, strategy_coef=[1.0, 0.999])
    solved = identity.published_objective(m, spectrum, 0.3)
    explicit = identity.explicit_objective(m, spectrum, 0.3)
    carried = identity.propagated_covariance(m, spectrum, 0.3)
    assert explicit == pytest.approx(solved, rel=1e-6)
    assert abs(carried / solved - 1) < 1e-12


def test_ledger_rows_are_those_of_the_grid(grid):
    rows = identity.ledger_rows()
    assert rows["identity.configs"] == 576
    assert rows["identity.worst_relative_error"] == identity.worst_errors(grid).max()
    assert rows["identity.all_below"] < 1e-10
