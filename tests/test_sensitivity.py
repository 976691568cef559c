"""Sensitivities against brute force over all patterns and all directions, and published values."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from jax_privacy.matrix_factorization import sensitivity as jax_sensitivity
from jax_privacy.matrix_factorization import toeplitz

from momentdp import sensitivity

PATTERNS = [(1, 1), (1, 3), (3, 2), (3, None), (9, 5), (1, None)]


def square_root_coefficients(count):
    """Coefficients of (1 - x)^(-1/2)."""
    return np.cumprod(np.r_[1.0, (2 * np.arange(1, count) - 1) / (2 * np.arange(1, count))])


def brute_force(matrix, min_sep, max_participations):
    """max over sets of steps of max over unit vectors of ||sum_i C[:, i] u_i'||, n <= 12.

    The inner maximum by coordinate ascent (each u_i turns to what the others pull it to) in
    enough dimensions for a global optimum, from several starts.
    """
    rng = np.random.default_rng(0)
    steps = len(matrix)
    best = 0.0
    for size in range(1, (max_participations or steps) + 1):
        for chosen in itertools.combinations(range(steps), size):
            if any(b - a < min_sep for a, b in itertools.pairwise(chosen)):
                continue
            columns = matrix[:, chosen]
            pull = columns.T @ columns
            np.fill_diagonal(pull, 0.0)
            if size <= 2 or np.all(pull >= 0):
                starts = [np.ones((size, 1)), np.array([[1.0], [-1.0]])[:size]]
                starts = [start for start in starts if len(start) == size]
            else:
                starts = [rng.normal(size=(size, size)) for _ in range(2)]
                starts += [np.ones((size, 1))]
            for directions in starts:
                directions = directions / np.linalg.norm(directions, axis=1, keepdims=True)
                for _ in range(30 if directions.shape[1] > 1 else 0):
                    for i in range(size):
                        target = pull[i] @ directions
                        if np.linalg.norm(target) > 0:
                            directions[i] = target / np.linalg.norm(target)
                best = max(best, float(np.linalg.norm(columns @ directions)))
    return best


@functools.cache
def truth_for(name, min_sep, max_participations):
    return brute_force(dict(random_strategies())[name], min_sep, max_participations)


def random_strategies():
    rng = np.random.default_rng(1)
    full = np.tril(rng.normal(size=(8, 8)))
    yield "signed", full
    yield "nonnegative", np.abs(full)
    yield "signed banded", full - np.tril(full, -3)
    yield "nonnegative banded", np.abs(full - np.tril(full, -2))
    yield "one heavy column", np.tril(np.ones((8, 8))) @ np.diag([1, 1, 9.0, 1, 1, 1, 1, 1])
    yield (
        "non-monotone Toeplitz",
        scipy.linalg.toeplitz([1, 0.2, 0.9, 0.1] + [0] * 4, [1] + [0] * 7),
    )
    yield (
        "signed Toeplitz",
        scipy.linalg.toeplitz(0.7 ** np.arange(8) * (-1.0) ** np.arange(8), [1] + [0] * 7),
    )


@pytest.mark.parametrize(("min_sep", "max_participations"), PATTERNS)
@pytest.mark.parametrize(("name", "matrix"), list(random_strategies()))
def test_dense_against_brute_force(name, matrix, min_sep, max_participations):
    value, exact = sensitivity.of_matrix(matrix, min_sep, max_participations)
    truth = truth_for(name, min_sep, max_participations)
    if exact:
        assert value == pytest.approx(truth, rel=1e-9)
    else:
        assert value >= truth * (1 - 1e-9)
    if "nonnegative" in name or "heavy" in name or (max_participations or 9) <= 2:
        assert exact


@pytest.mark.parametrize(("min_sep", "max_participations"), PATTERNS)
@pytest.mark.parametrize(("name", "matrix"), list(random_strategies()))
def test_bound_for_too_many_patterns_is_safe(
    name, matrix, min_sep, max_participations, monkeypatch
):
    monkeypatch.setattr(sensitivity, "_MOST_PATTERNS_TRIED", 0)
    value, exact = sensitivity.of_matrix(matrix, min_sep, max_participations)
    truth = truth_for(name, min_sep, max_participations)
    assert value >= truth * (1 - 1e-9)
    if exact:
        assert value == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("bands", [1, 3, 8])
@pytest.mark.parametrize(("min_sep", "max_participations"), PATTERNS)
def test_banded_against_brute_force(bands, min_sep, max_participations):
    # Entries that stick out of the matrix are filled on purpose: they must not count.
    diagonals = np.random.default_rng(bands).uniform(0.1, 1, size=(bands, 8))
    matrix = sum(np.diag(diagonals[k, : 8 - k], -k) for k in range(bands))
    value, exact = sensitivity.of_banded(diagonals, min_sep, max_participations)
    assert exact
    assert value == pytest.approx(brute_force(matrix, min_sep, max_participations), rel=1e-9)


@pytest.mark.parametrize(
    "coef",
    [
        [1.0, 0.5, 0.25, 0.2, 0.1, 0.1, 0.0, 0.0],
        [1.0, 0.8],
        [0.1, 0.2, 0.9],
        [1.0, -0.5, 0.3],
        [0.3, 1.0, 0.2, 0.8, 0.1, 0.4],
        list(square_root_coefficients(20)),
    ],
)
@pytest.mark.parametrize(("min_sep", "max_participations"), PATTERNS)
def test_toeplitz_against_brute_force(coef, min_sep, max_participations):
    """Bands fewer than steps, non-monotone and longer than the horizon among them."""
    coef = np.array(coef)
    padded = np.zeros(8)
    padded[: len(coef)] = coef[:8]
    matrix = scipy.linalg.toeplitz(padded, np.zeros(8))
    value, exact = sensitivity.of_toeplitz(coef, 8, min_sep, max_participations)
    truth = brute_force(matrix, min_sep, max_participations)
    assert exact or np.any(coef < 0)
    assert value >= truth * (1 - 1e-9)
    if exact:
        assert value == pytest.approx(truth, rel=1e-9)


def test_three_columns_that_repel_each_other():
    """No signs make all three products positive: the best directions are 120 degrees apart.

    The square is then 4 (3 + 6 x 0.4 x 0.5) = 16.8, below sum |X_ij| = 4 (3 + 6 x 0.4) = 21.6.
    """
    gram = np.eye(12)
    steps = [0, 5, 10]
    gram[np.ix_(steps, steps)] = 4 * (1.4 * np.eye(3) - 0.4)
    matrix = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T  # lower triangular, C'C = gram
    assert brute_force(matrix, 5, 3) ** 2 == pytest.approx(16.8, rel=1e-9)
    value, exact = sensitivity.of_matrix(matrix, 5, 3)
    assert value**2 == pytest.approx(21.6, rel=1e-12)
    assert not exact
    assert sensitivity.of_matrix(matrix, 5, 2) == (pytest.approx(np.sqrt(11.2), rel=1e-12), True)


def test_reference_value_needs_the_horizon():
    """Square root cut to 16 bands, T=128, min_sep 16, 8 participations: independent values."""
    coef = square_root_coefficients(16)
    value, exact = sensitivity.of_toeplitz(coef, 128, 16, 8)
    assert exact
    assert value**2 == pytest.approx(15.551031, rel=1e-7)
    guessed = toeplitz.minsep_sensitivity_squared(jnp.array(coef), 16, 8)
    assert float(guessed) == pytest.approx(1.943879, rel=1e-5)
    assert value**2 / float(guessed) == pytest.approx(8, rel=1e-5)


@pytest.mark.parametrize(
    ("coef", "expected"),
    [(square_root_coefficients(128), 1.6155815872), (square_root_coefficients(16), 1.3942305574)],
)
def test_single_participation_reference_values(coef, expected):
    matrix = scipy.linalg.toeplitz(np.r_[coef, np.zeros(128 - len(coef))], np.zeros(128))
    for value, exact in (sensitivity.of_toeplitz(coef, 128), sensitivity.of_matrix(matrix)):
        assert exact
        assert value == pytest.approx(expected, rel=1e-10)


def test_patterns_that_do_not_fit_the_horizon_are_clipped():
    coef = square_root_coefficients(16)
    assert sensitivity.of_toeplitz(coef, 100, 40, 50) == sensitivity.of_toeplitz(coef, 100, 40, 3)
    assert sensitivity.of_toeplitz(coef, 100, 500, 9) == sensitivity.of_toeplitz(coef, 100)


def test_structured_sensitivities_need_no_matrix_of_the_horizon():
    """At T = 100,000 a T x T matrix would take 80 GB."""
    steps = 100_000
    value, exact = sensitivity.of_banded(np.ones((4, steps)), 30_000, 3)
    assert exact
    assert value == pytest.approx(np.sqrt(12), rel=1e-12)
    value, exact = sensitivity.of_toeplitz(0.5 ** np.arange(3), steps, 30_000, 4)
    assert exact
    assert value == pytest.approx(np.sqrt(4 * 1.3125), rel=1e-12)
    assert sensitivity.of_toeplitz(square_root_coefficients(steps), steps, 30_000, 3)[1]


def test_float64_whatever_the_flag_and_flag_untouched():
    matrix = np.diag(np.sqrt([1.0, 1.0 + 1e-10, 1.0, 2.0 + 1e-10]))
    for flag in (False, True):
        with jax.enable_x64(flag):
            value, _ = sensitivity.of_matrix(matrix, 1, 2)
            assert jnp.array(1.0).dtype == (jnp.float64 if flag else jnp.float32)
        assert type(value) is float
        assert value**2 - 3 == pytest.approx(2e-10, rel=1e-3)


def test_many_patterns_against_the_exact_fixed_epoch_value():
    """Fixed epochs are some of the patterns: the bound lies above them, or is attained by one."""
    rng = np.random.default_rng(2)
    smooth = np.tril(rng.uniform(size=(80, 80)))
    uneven = smooth * rng.exponential(size=80)
    with jax.enable_x64(True):
        fixed = [jax_sensitivity.fixed_epoch_sensitivity(jnp.array(m), 8) for m in (smooth, uneven)]
    assert sensitivity.of_matrix(smooth, 10, 8) == (pytest.approx(fixed[0], rel=1e-12), True)
    value, exact = sensitivity.of_matrix(uneven, 10, 8)
    assert not exact
    assert value > 1.01 * fixed[1]


@pytest.mark.parametrize(
    ("min_sep", "max_participations", "argument"),
    [
        (0, 2, "min_sep"),
        (None, 2, "min_sep"),
        (None, None, "min_sep"),
        (4, 0, "max_participations"),
        (4, True, "max_participations"),
    ],
)
def test_bad_patterns_are_refused(min_sep, max_participations, argument):
    calls = [
        lambda: sensitivity.of_matrix(np.eye(8), min_sep, max_participations),
        lambda: sensitivity.of_banded(np.ones((2, 8)), min_sep, max_participations),
        lambda: sensitivity.of_toeplitz(np.ones(2), 8, min_sep, max_participations),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=f"^{argument}: got .*; (pass|give)"):
            call()
