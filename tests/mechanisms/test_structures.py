"""Every structure against matrices written out here, and against its dense twin."""

import tracemalloc

import numpy as np
import oracles
import pytest
import scipy.linalg

from momentdp.damage import damage, damage_curve
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism

STEPS = 96
ROOT = np.cumprod(np.r_[1.0, (2 * np.arange(1, STEPS) - 1) / (2 * np.arange(1, STEPS))])
ALTERNATING = 0.9 ** np.arange(STEPS) * (-1.0) ** np.arange(STEPS)
DIAGONALS = np.vstack([np.ones(STEPS), 0.2 * np.random.default_rng(0).normal(size=(4, STEPS))])
SPECTRUM = spectra.Spectrum([0.0, 0.1, 1.0], [3.0, 1.0, 2.0])
RATES = schedules.cosine(STEPS, 0.3)


def toeplitz(coef):
    """Lower triangular, zeros after the coefficients given."""
    return np.tril(scipy.linalg.toeplitz(np.pad(coef, (0, STEPS - len(coef)))))


def from_diagonals(diagonals):
    C = np.zeros((STEPS, STEPS))
    for j in range(STEPS):
        for k in range(min(len(diagonals), STEPS - j)):
            C[j + k, j] = diagonals[k, j]
    return C


def unit_columns(C):
    return C / np.linalg.norm(C, axis=0)


def made(**arguments):
    return Mechanism.from_toeplitz(steps=STEPS, **arguments)


CASES = {  # name -> (mechanism, its C written out)
    "identity": (made(strategy_coef=[1.0]), np.eye(STEPS)),
    "banded": (Mechanism.from_banded(DIAGONALS), from_diagonals(DIAGONALS)),
    "one band": (Mechanism.from_banded(2 + DIAGONALS[1:2]), np.diag(2 + DIAGONALS[1])),
    "few strategy coefficients": (made(strategy_coef=ROOT[:16]), toeplitz(ROOT[:16])),
    "many strategy coefficients": (made(strategy_coef=ROOT), toeplitz(ROOT)),
    "just over few": (made(strategy_coef=ROOT[:65]), toeplitz(ROOT[:65])),
    "negative coefficients": (made(strategy_coef=ALTERNATING), toeplitz(ALTERNATING)),
    "few noising coefficients": (
        made(noising_coef=[1.0, -0.5, -0.125, 0.3]),
        np.linalg.inv(toeplitz(np.array([1.0, -0.5, -0.125, 0.3]))),
    ),
    "many noising coefficients": (
        made(noising_coef=ALTERNATING),
        np.linalg.inv(toeplitz(ALTERNATING)),
    ),
    "unit columns, few": (
        made(strategy_coef=ROOT[:16], column_normalize=True),
        unit_columns(toeplitz(ROOT[:16])),
    ),
    "unit columns, many": (
        made(strategy_coef=ROOT, column_normalize=True),
        unit_columns(toeplitz(ROOT)),
    ),
    "unit columns, inverse banded": (
        made(noising_coef=[2.0, -0.9], column_normalize=True),
        unit_columns(np.linalg.inv(toeplitz(np.array([2.0, -0.9])))),
    ),
    "scaled": (made(strategy_coef=ROOT[:16]).normalized(), None),
    "dense": (
        Mechanism.from_strategy_matrix(oracles.lower_triangular(STEPS)),
        oracles.lower_triangular(STEPS),
    ),
    "from noising matrix": (
        Mechanism.from_noising_matrix(oracles.lower_triangular(STEPS)),
        np.linalg.inv(oracles.lower_triangular(STEPS)),
    ),
}
CASES["scaled"] = (CASES["scaled"][0], toeplitz(ROOT[:16]) / np.linalg.norm(ROOT[:16]))


@pytest.fixture(params=CASES)
def case(request):
    m, C = CASES[request.param]
    return m, C, Mechanism.from_strategy_matrix(np.tril(C))


def test_matrices(case):
    m, C, _ = case
    np.testing.assert_allclose(m.strategy_matrix, C, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(m.noising_matrix, np.linalg.inv(C), rtol=1e-9, atol=1e-10)
    assert m.steps == STEPS
    for matrix in (m.strategy_matrix, m.noising_matrix):
        assert type(matrix) is np.ndarray and matrix.dtype == np.float64
        assert not np.any(np.triu(matrix, 1))


def test_solves(case):
    m, C, _ = case
    rows = np.random.default_rng(2).normal(size=(3, STEPS))
    solved = np.linalg.solve(C, rows.T).T
    np.testing.assert_allclose(m.structure.solve(rows), solved, rtol=1e-9, atol=1e-9)
    transposed = np.linalg.solve(C.T, rows.T).T
    np.testing.assert_allclose(m.structure.solve_transposed(rows), transposed, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(rows, np.random.default_rng(2).normal(size=(3, STEPS)))


def test_scaled(case):
    m, C, _ = case
    scaled = m.structure.scaled(0.25)
    np.testing.assert_allclose(scaled.strategy_matrix(), C / 4, rtol=1e-10, atol=1e-11)
    np.testing.assert_allclose(scaled.noising_matrix(), 4 * np.linalg.inv(C), atol=1e-9)
    np.testing.assert_allclose(scaled.scaled(4.0).strategy_matrix(), C, rtol=1e-10, atol=1e-11)


def test_sensitivity_is_the_largest_column_norm(case):
    m, C, _ = case
    expected = np.linalg.norm(C, axis=0).max()
    assert m.sensitivity() == pytest.approx(expected, rel=1e-11) and m.sensitivity_is_exact()
    normalized = m.normalized()
    assert normalized.sensitivity() == pytest.approx(1.0, rel=1e-12)
    assert type(normalized.structure) is type(m.structure)
    np.testing.assert_allclose(normalized.strategy_matrix, C / expected, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("min_sep", "participations"), [(48, 2), (16, 6)])
def test_sensitivity_of_patterns_agrees_with_the_twin(case, min_sep, participations):
    """Where both are exact they agree; a bound is never below what is exact."""
    m, _, twin = case
    value, other = (x.sensitivity(min_sep, participations) for x in (m, twin))
    exact, other_exact = (x.sensitivity_is_exact(min_sep, participations) for x in (m, twin))
    if exact and other_exact:
        assert value == pytest.approx(other, rel=1e-10)
    elif exact:
        assert value <= other * (1 + 1e-10)
    elif other_exact:
        assert other <= value * (1 + 1e-10)


def test_damage_agrees_with_the_twin(case):
    m, _, twin = case
    arguments = (Momentum(0.9), SPECTRUM, RATES)
    assert damage(m, *arguments) == pytest.approx(damage(twin, *arguments), rel=1e-10)
    np.testing.assert_allclose(damage_curve(m, *arguments), damage_curve(twin, *arguments), 1e-9)
    assert damage(m.normalized(), *arguments) == pytest.approx(damage(m, *arguments), rel=1e-12)


def test_buffers():
    """Past vectors that a streaming generator keeps: bands - 1, or all of them."""
    expected = {
        "identity": 0,
        "banded": 4,
        "few strategy coefficients": 15,
        "few noising coefficients": 3,
        "unit columns, few": 15,
        "dense": STEPS - 1,
    }
    assert {name: CASES[name][0].buffers for name in expected} == expected


LONG = 2**16
FEW = np.r_[1.0, -0.5 / np.arange(1, 16) ** 1.5 / 2]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Mechanism.from_toeplitz(steps=LONG, strategy_coef=ROOT[:16]),
        lambda: Mechanism.from_toeplitz(steps=LONG, noising_coef=FEW),
        lambda: Mechanism.from_toeplitz(steps=LONG, strategy_coef=ROOT[:16], column_normalize=True),
        lambda: Mechanism.from_banded(np.tile(ROOT[:16, None], (1, LONG))),
        lambda: Mechanism.from_toeplitz(steps=LONG, strategy_coef=np.resize(ROOT, 80)),
    ],
    ids=["Toeplitz", "inverse banded", "unit columns", "banded", "80 coefficients"],
)
def test_long_horizon_needs_no_square_matrix(build):
    """T = 65,536, d = 16: a T x T matrix would take 34 GB; G with its d dT entries 134 MB more."""
    spectrum, rates = spectra.log_spaced(16, 100.0), np.full(LONG, 0.05)
    tracemalloc.start()
    value = damage(build(), Momentum(0.9), spectrum, rates)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.isfinite(value) and value > 0
    assert peak < 200e6


def test_long_horizon_value():
    """Independent noise for 65,536 steps is at its stationary limit, which has a closed form."""
    m = Mechanism.from_toeplitz(steps=LONG, strategy_coef=[1.0])
    eigenvalues = np.logspace(-1, 0, 16)
    value = damage(m, Momentum(0.9), eigenvalues, np.full(LONG, 0.3))
    expected = 0.5 * 0.3 * 1.9 / (0.1 * (3.8 - 0.3 * eigenvalues))
    assert value == pytest.approx(expected.sum(), rel=1e-12)
