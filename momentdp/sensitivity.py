"""L2 sensitivity of a strategy matrix C under a participation pattern.

A user takes part in at most ``max_participations`` steps, any two of them at least ``min_sep``
apart, each time with a gradient of norm at most 1. The sensitivity is the largest Frobenius norm
of ``sum_i C[:, i] u_i'`` over all such sets of steps and unit vectors ``u_i``; with the Gram matrix
``X = C' C`` its square is the largest ``sum_ij X_ij <u_i, u_j>``.

Every function returns ``(value, exact)``: the sensitivity itself where it is known, and otherwise
an upper bound, which is safe for privacy. It is exact for

- one participation, or two (then u_1 = +-u_2 attains every sign of X_12);
- columns that are orthogonal when min_sep apart, such as at most min_sep bands;
- nonnegative, nonincreasing Toeplitz coefficients (arXiv 2405.13763, theorem 2);
- few enough patterns to try them all, if signs can align the contributions of the worst one.

Else the bound is algorithm 4 of arXiv 2306.08153, exact where an evenly spaced pattern attains it.
The horizon T is always taken from the matrix or
passed by name: jax-privacy's Toeplitz function guesses it from the number of coefficients when it
is left out, which understates the sensitivity.
"""

import itertools
import math

import jax
import numpy as np
import scipy.linalg
from jax_privacy.matrix_factorization import sensitivity as jax_sensitivity
from jax_privacy.matrix_factorization import toeplitz
from jaxtyping import Float, Int

from momentdp import _checks

# 1e5 patterns take a fraction of a second; 4 epochs of 32 steps have 5e4.
_MOST_PATTERNS_TRIED = 100_000


def of_matrix(
    strategy_matrix: Float[np.ndarray, "steps steps"],
    min_sep: int | None = None,
    max_participations: int | None = 1,
) -> tuple[float, bool]:
    """Sensitivity of a dense strategy.

    Args:
        strategy_matrix: (T, T) lower triangular.
        min_sep: smallest distance between two participations (1: any two steps); needed unless
            max_participations is 1.
        max_participations: None, or more than fit into T steps, means as many as fit.

    Raises:
        ValueError: min_sep or max_participations not a positive whole number, or min_sep missing.
    """
    steps = len(strategy_matrix)
    min_sep, participations = check_pattern(steps, min_sep, max_participations)
    if participations == 1:
        return float(np.linalg.norm(strategy_matrix, axis=0).max()), True
    gram = strategy_matrix.T @ strategy_matrix
    distance = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    if not np.any(gram[distance >= min_sep]):
        return _of_orthogonal_columns(np.diag(gram), min_sep, participations), True
    if participations == 2:
        norms = np.diag(gram)
        pairs = np.add.outer(norms, norms) + 2 * np.abs(gram)
        return math.sqrt(np.where(distance >= min_sep, pairs, norms).max()), True
    if _pattern_count(steps, min_sep, participations) <= _MOST_PATTERNS_TRIED:
        total, aligned = max(
            _worst(gram, _all_patterns(steps, min_sep, size))
            for size in range(1, participations + 1)
        )
        return math.sqrt(total), aligned
    with jax.enable_x64(True):
        bound = jax_sensitivity.get_min_sep_sensitivity_upper_bound_for_X(
            gram, min_sep, participations
        )
    # Often the worst pattern is an evenly spaced one: then it attains the bound.
    span = min_sep * (participations - 1)
    evenly = np.add.outer(np.arange(steps - span), min_sep * np.arange(participations))
    total, aligned = _worst(gram, evenly)
    return float(bound), aligned and math.sqrt(total) >= bound * (1 - 1e-12)


def of_banded(
    diagonals: Float[np.ndarray, "bands steps"],
    min_sep: int | None = None,
    max_participations: int | None = 1,
) -> tuple[float, bool]:
    """Sensitivity of ``C[j + k, j] = diagonals[k, j]``; places with j + k >= T are ignored.

    Needs no T x T matrix where min_sep is at least the number of bands. Arguments and errors as in
    :func:`of_matrix`.
    """
    bands, steps = diagonals.shape
    min_sep, participations = check_pattern(steps, min_sep, max_participations)
    inside = np.add.outer(np.arange(bands), np.arange(steps)) < steps
    entries = np.where(inside, diagonals, 0.0)
    if participations == 1 or bands <= min_sep:
        squared_norms = np.sum(entries**2, axis=0)
        return _of_orthogonal_columns(squared_norms, min_sep, participations), True
    matrix = sum(np.diag(entries[k, : steps - k], -k) for k in range(min(bands, steps)))
    return of_matrix(matrix, min_sep, participations)


def of_toeplitz(
    strategy_coef: Float[np.ndarray, " coefs"],
    steps: int,
    min_sep: int | None = None,
    max_participations: int | None = 1,
) -> tuple[float, bool]:
    """Sensitivity of ``C[j + k, j] = strategy_coef[k]`` over T = ``steps`` steps.

    Needs no T x T matrix unless the coefficients outlast min_sep and are negative or increasing
    somewhere. Arguments and errors as in :func:`of_matrix`.
    """
    coef = np.zeros(steps)
    given = strategy_coef[:steps]
    coef[: len(given)] = given
    min_sep, participations = check_pattern(steps, min_sep, max_participations)
    if participations == 1 or not np.any(coef[min_sep:]):
        squared_norms = np.cumsum(coef**2)[::-1]
        return _of_orthogonal_columns(squared_norms, min_sep, participations), True
    if np.all(coef >= 0) and np.all(np.diff(coef) <= 0):
        with jax.enable_x64(True):
            squared = toeplitz.minsep_sensitivity_squared(coef, min_sep, participations, n=steps)
        return math.sqrt(float(squared)), True
    matrix = scipy.linalg.toeplitz(coef, np.zeros(steps))
    return of_matrix(matrix, min_sep, participations)


def check_pattern(
    steps: int, min_sep: int | None, max_participations: int | None
) -> tuple[int, int]:
    """(min_sep, participations that fit into the horizon), checked."""
    if max_participations is not None:
        max_participations = _checks.count("max_participations", max_participations)
    if min_sep is None:
        if max_participations != 1:
            mend = f"give it, as max_participations is {max_participations} (1: any two steps)"
            raise _checks.refuse("min_sep", None, mend)
        min_sep = steps
    min_sep = _checks.count("min_sep", min_sep)
    fits = jax_sensitivity.minsep_true_max_participations(steps, min_sep, max_participations)
    return min_sep, fits


def _of_orthogonal_columns(
    squared_norms: Float[np.ndarray, " steps"], min_sep: int, participations: int
) -> float:
    """Nothing interferes: choose the heaviest admissible set of columns."""
    if participations == 1:
        return float(np.sqrt(squared_norms.max()))
    with jax.enable_x64(True):
        squared = jax_sensitivity.max_participation_for_linear_fn(
            squared_norms, min_sep, participations
        )
    return math.sqrt(float(squared))


def _pattern_count(steps: int, min_sep: int, participations: int) -> int:
    """Number of non-empty patterns: k choices of steps - (k - 1)(min_sep - 1) places each."""
    sizes = range(1, participations + 1)
    return sum(math.comb(steps - (k - 1) * (min_sep - 1), k) for k in sizes)


def _all_patterns(
    steps: int, min_sep: int, size: int
) -> Int[np.ndarray, "patterns participations"]:
    """Every set of ``size`` steps with gaps of at least min_sep."""
    gaps = (min_sep - 1) * np.arange(size)
    return np.array(list(itertools.combinations(range(steps - int(gaps[-1])), size))) + gaps


def _worst(
    gram: Float[np.ndarray, "steps steps"], patterns: Int[np.ndarray, "patterns participations"]
) -> tuple[float, bool]:
    """The largest ``sum |X_ij|`` over these patterns, and whether some signs attain it."""
    totals = np.diag(gram)[patterns].sum(axis=1)
    for i, j in itertools.combinations(range(patterns.shape[1]), 2):
        totals += 2 * np.abs(gram[patterns[:, i], patterns[:, j]])
    worst = patterns[totals.argmax()]
    block = gram[np.ix_(worst, worst)]
    signs = np.where(block[0] < 0, -1.0, 1.0)
    return float(totals.max()), bool(np.all(block * np.outer(signs, signs) >= 0))
