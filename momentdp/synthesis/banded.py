"""Banded P1 in the column-normalised factor: exact gradients, structured solves, a certificate."""

import dataclasses

import numpy as np
import scipy.linalg
import scipy.optimize

from momentdp._checks import count, finite_array, number, refuse
from momentdp.synthesis.blocks import BandedObjective
from momentdp.synthesis.certificate import banded_bound
from momentdp.synthesis.problem import (
    P1Solution,
    banded_factor,
    factor_of,
    gram_diagonals,
    progress,
    rank_warning,
    ridge_of,
)

# Where Q has no full-rank term of its own, the solution is approached along these.
PATH = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)


def solve_banded(
    Q=None,
    *,
    factor=None,
    bands,
    regularisation=0.0,
    floor=0.0,
    tolerance=1e-6,
    max_iterations=10000,
    start=None,
    certify=True,
) -> P1Solution:
    """Minimise tr(Q X^-1) over X = C'C, C lower triangular of ``bands`` diagonals, diag X = 1.

    L-BFGS in the columns of C, each divided by its norm: every stationary point there is the
    global minimum, for C -> X is one to one and the problem in X is convex. A step costs
    O(T b (b + r)) for a factor of r columns, with any regularisation.

    Args: ``Q`` (T, T) PSD or ``factor`` (T, r) with Q = F F'; ``regularisation`` eps adds
    eps tr(Q) / T I; ``floor`` f solves over X = (1 - f) C'C + f I (lambda_min(X) >= f exactly,
    no penalty); ``start`` (bands, T) are the diagonals of a warm start; ``tolerance`` is the
    relative duality gap to stop at, ``max_iterations`` counts gradients. ``certify`` False
    skips the bound, the one part that needs T x T matrices.
    The bound ignores the floor: with one, the gap includes what the floor costs. Where Q has no
    full-rank term, X is approached along regularisations down to 1e-7; if it has no minimiser
    either, X tends to a singular matrix and ``warnings`` says so.
    Raises ValueError for a Q that is not PSD, ``bands`` outside 1..T, ``floor`` outside [0, 1),
    a start of another shape or with entries that are not finite.
    """
    F = factor_of(Q, factor)
    steps = len(F)
    bands = count("bands", bands)
    if bands > steps:
        raise refuse("bands", bands, f"pass at most steps = {steps}")
    regularisation = number("regularisation", regularisation, 0.0)
    floor = number("floor", floor, 0.0, 1.0)
    tolerance = number("tolerance", tolerance, 0.0)
    run = _Run(_start(start, bands, steps), count("max_iterations", max_iterations))
    ridge = ridge_of(F, regularisation)
    target = BandedObjective(F, ridge, floor, bands)
    bound, converged = -np.inf, False

    path = [eps for eps in PATH if eps >= max(10 * regularisation, floor**2)]
    for eps in path if regularisation < 1e-4 else ():
        stage_ridge = ridge_of(F, eps)
        run.descend(BandedObjective(F, stage_ridge, 0.0, bands), 1e-5, 1500, f"eps {eps:g}")
        if certify and eps <= 1e-3:
            bound = max(bound, banded_bound(run.C, F, ridge, stage_ridge))
    for accuracy in (1e-5, 1e-6, 1e-7, 1e-8):
        stationary = run.descend(target, accuracy, run.left, "banded P1")
        X = gram_diagonals(run.C, floor)
        if certify:
            bound = max(bound, banded_bound(banded_factor(X), F, ridge))
        converged = bound >= (1 - tolerance) * run.value if certify else stationary
        if converged or run.left <= 0 or run.interrupted or (floor and stationary):
            break

    lambda_min = _smallest_eigenvalue(X)
    warnings = rank_warning(F) if ridge == 0 and lambda_min < 1e-3 and not floor else []
    if run.interrupted:
        warnings.append("interrupted: the best point so far")
    elif not converged:
        warnings.append(f"gap {1 - bound / run.value:.1e} not below the tolerance {tolerance:.1e}")
    if floor and certify:
        warnings.append("the bound ignores the floor, so the gap includes what the floor costs")
    return P1Solution(
        structure="banded",
        factor=banded_factor(X),
        steps=steps,
        objective=run.value,
        dual_bound=min(bound, run.value) if certify else float("nan"),
        converged=bool(converged),
        iterations=run.gradients,
        warnings=tuple(warnings),
        lambda_min=lambda_min,
    )


@dataclasses.dataclass
class _Run:
    """The point reached so far and what it took."""

    C: np.ndarray
    left: int
    gradients: int = 0
    value: float = np.inf
    interrupted: bool = False

    def descend(self, objective, accuracy, most, label) -> bool:
        """L-BFGS from C until the gradient of log(objective) is below ``accuracy``."""
        inside = objective.layout.inside
        p = self.C[inside]
        scale = objective(p)[0]
        best = [scale, p]
        used = 0

        def scaled(p):
            nonlocal used
            used += 1
            value, gradient = objective(p)
            if value < best[0]:
                best[:] = value, p.copy()
            if used % 100 == 0:
                progress(f"{label}: {used} gradients, objective {best[0]:.9g}")
            return value / scale, gradient / scale

        reached = False
        if not self.interrupted and min(most, self.left) > 0:
            limit = min(most, self.left)
            options = {"maxcor": 40, "maxiter": limit, "maxfun": limit, "ftol": 0.0}
            try:
                answer = scipy.optimize.minimize(
                    scaled,
                    p,
                    jac=True,
                    method="L-BFGS-B",
                    options=options | {"gtol": accuracy},
                )
                reached = bool(answer.success)
            except KeyboardInterrupt:
                self.interrupted = True
        self.gradients, self.left = self.gradients + used, self.left - used
        self.value, self.C = float(best[0]), objective.normalized(best[1])
        return reached


def _start(start, bands, steps):
    """The given diagonals, or the square root of the prefix workload cut to the band."""
    k = np.arange(1, bands)
    default = np.concatenate([[1.0], np.cumprod((k - 0.5) / k)])
    C = np.tile(default[:, None], (1, steps))
    if start is not None:
        C = finite_array("start", start, 2)
        if C.shape != (bands, steps):
            raise refuse("start", f"shape {C.shape}", f"pass diagonals of shape {(bands, steps)}")
        if not np.all(C[0]):
            raise refuse("start", "a zero on the diagonal", "pass an invertible C")
    C = np.where(np.add.outer(np.arange(bands), np.arange(steps)) < steps, C, 0.0)
    return C / np.linalg.norm(C, axis=0)


def _smallest_eigenvalue(X):
    return float(scipy.linalg.eigvals_banded(X, lower=True, select="i", select_range=(0, 0))[0])
