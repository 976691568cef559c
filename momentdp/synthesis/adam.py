"""The paper's own procedure for P1 (B.2), step by step, kept apart from the solvers that work."""

import numpy as np
from jaxtyping import Float

from momentdp._checks import count, finite_array, number, refuse
from momentdp.synthesis.problem import (
    P1Solution,
    banded_factor,
    diagonals_of,
    factor_of,
    progress,
)

LEARNING_RATE, START_SCALE, PENALTY = 0.02, 0.05, 1e6
BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


def solve_adam(
    Q=None, *, factor=None, bands, iterations=2000, floor=1e-3, start_seed=0, start=None
) -> tuple[P1Solution, Float[np.ndarray, "steps steps"], float]:
    """(best feasible iterate, last X, last objective) of Adam on the free band entries of X.

    Diagonal fixed at one, entries |i - j| < ``bands`` free, Adam with optax's defaults and
    learning rate 0.02 from 0.05 N(0, 1), objective tr(Q X^-1) + 1e6 (floor - lambda_min)_+^2.
    Best feasible: the smallest objective met with lambda_min(X) >= ``floor``. The LAST iterate is
    chaotic (a relative change of 1e-14 in the start moves its objective from indefinite to 10)
    and may be indefinite: show it only as a distribution over ``start_seed``. The paper does not
    say which generator or which order of entries; here NumPy's, diagonal by diagonal.
    ``start`` replaces the drawn entries, (free entries,). The objective excludes the penalty.
    """
    F = factor_of(Q, factor)
    steps = len(F)
    bands = count("bands", bands)
    if bands > steps:
        raise refuse("bands", bands, f"pass at most steps = {steps}")
    iterations, floor = count("iterations", iterations), number("floor", floor, 0.0, 1.0)
    rows = np.concatenate([np.arange(k, steps) for k in range(1, bands)] or [[]]).astype(int)
    columns = np.concatenate([np.arange(steps - k) for k in range(1, bands)] or [[]]).astype(int)
    if start is None:
        start = START_SCALE * np.random.default_rng(start_seed).standard_normal(len(rows))
    entries = finite_array("start", start, 1) if len(rows) else np.zeros(0)
    if entries.shape != rows.shape:
        raise refuse("start", f"shape {entries.shape}", f"pass {len(rows)} free entries")
    first, second = np.zeros_like(entries), np.zeros_like(entries)
    best, best_value, best_lambda, done = None, np.inf, np.nan, 0
    X, last_value = np.eye(steps), np.nan
    try:
        for done in range(1, iterations + 2):
            X[rows, columns] = X[columns, rows] = entries
            values, vectors = np.linalg.eigh(X)
            solved = vectors @ ((vectors.T @ F) / values[:, None])
            last_value = float(np.sum(F * solved))
            if values[0] >= floor and last_value < best_value:
                best, best_value, best_lambda = X.copy(), last_value, values[0]
            if done > iterations:
                break
            progress(f"Adam: step {done}/{iterations}, best feasible {best_value:.6g}")
            # Each free entry stands at two places of X, hence the 2.
            gradient = -2 * np.einsum("ia,ia->i", solved[rows], solved[columns])
            short = max(0.0, floor - values[0])
            gradient -= 2 * PENALTY * short * 2 * vectors[rows, 0] * vectors[columns, 0]
            first = BETA1 * first + (1 - BETA1) * gradient
            second = BETA2 * second + (1 - BETA2) * gradient**2
            scaled = np.sqrt(second / (1 - BETA2**done)) + EPS
            entries = entries - LEARNING_RATE * first / (1 - BETA1**done) / scaled
    except KeyboardInterrupt:
        pass
    warnings = ["Adam proves nothing: the bound is that of no solver, see solve_banded"]
    if best is None:
        warnings.append(f"no iterate reached lambda_min >= {floor}: the identity is returned")
        best, best_value, best_lambda = np.eye(steps), float(np.sum(F * F)), 1.0
    return (
        P1Solution(
            structure="banded",
            factor=banded_factor(diagonals_of(best, bands)),
            steps=steps,
            objective=best_value,
            dual_bound=float("nan"),
            converged=False,
            iterations=done - 1,
            warnings=tuple(warnings),
            lambda_min=float(best_lambda),
        ),
        X,
        last_value,
    )
