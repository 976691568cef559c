"""Banded P1 in the column-normalised factor: exact gradients, structured solves, a certificate."""

import dataclasses

import numpy as np
import scipy.linalg
import scipy.optimize

from momentdp._checks import count, finite_array, number, refuse
from momentdp.synthesis.blocks import BandedObjective, inside
from momentdp.synthesis.certificate import banded_bound
from momentdp.synthesis.problem import (
    P1Solution,
    banded_factor,
    factor_of,
    gram_diagonals,
    progress,
    rank_warning,
    ridge_of,
    root_series,
)

# Where Q has no full-rank term of its own, the solution is approached along these.
PATH, BOUND_STAGE = (1e-3, 1e-4, 1e-5, 1e-6, 1e-7), 1e-6
RENEWAL = 200


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

    lacking = rank_warning(F) if regularisation < 1e-4 else []
    for eps in PATH if lacking else ():
        if eps < max(3 * regularisation, floor**2):
            break
        stage = BandedObjective(F, ridge_of(F, eps), 0.0, bands)
        # A good bound without a ridge needs one stage near it solved well; the rest only leads.
        careful = certify and eps == BOUND_STAGE
        run.descend(stage, 1e-5 if careful else 1e-3, 1000 if careful else 300, f"eps {eps:g}")
        if careful:
            bound = banded_bound(run.C, F, ridge, stage.ridge)
    for accuracy in (1e-4, 1e-5, 1e-6, 1e-7):
        stationary = run.descend(target, accuracy, run.left, "banded P1", min(tolerance, 1e-6))
        X = gram_diagonals(run.C, floor)
        if certify:
            bound = max(bound, banded_bound(banded_factor(X), F, ridge))
        certified = bound >= (1 - tolerance) * run.value
        if certified or run.left <= 0 or run.interrupted or not stationary:
            break
    converged = certified or bool(floor or not certify) and run.left > 0 and not run.interrupted

    lambda_min = _smallest_eigenvalue(X)
    warnings = lacking if ridge == 0 and lambda_min < 1e-3 and not floor else []
    if run.interrupted:
        warnings.append("interrupted: the best point so far")
    elif not certified and certify:
        warnings.append(f"gap {1 - bound / run.value:.1e} not below the tolerance {tolerance:.1e}")
        if floor:
            warnings.append("the bound ignores the floor, so this gap includes the floor's cost")
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
    value: float = np.nan
    interrupted: bool = False

    def descend(self, objective, accuracy, most, label, stall=0.0) -> bool:
        """L-BFGS from C until the gradient of log(objective) in the metric is below ``accuracy``,
        or (False) a round of ``RENEWAL`` gradients gains less than ``stall``.

        The metric is renewed every ``RENEWAL`` gradients: with it 200 gradients do what 1500 do
        without, and far more where X is close to singular.
        """
        stop, reached = self.gradients + min(most, self.left), False
        while self.gradients < stop and not (reached or self.interrupted):
            before = objective(self.C)[0]
            reached = self._round(objective, accuracy, min(RENEWAL, stop - self.gradients), label)
            self.value = objective(self.C)[0]
            if not reached and before - self.value < stall * self.value:
                break
        return reached

    def _round(self, objective, accuracy, most, label):
        bands, steps = self.C.shape
        k, j = np.nonzero(objective.inside)
        at = j + k, bands - 1 - k  # row of C, and place in that row's window
        metric = objective.metric(self.C)
        trace = np.einsum("iaa->ia", metric)
        metric[:, range(bands), range(bands)] += 1e-13 * trace.max(axis=1, keepdims=True)
        whitener = np.linalg.inv(np.linalg.cholesky(metric))
        scale = objective(self.C)[0]
        best = [np.inf, self.C]
        used = 0

        def log_objective(change):
            nonlocal used
            used += 1
            # The log tames the poles of the objective, which are within reach of a first step.
            rows = np.matmul(change.reshape(steps, 1, bands), whitener)[:, 0]
            P = self.C.copy()
            P[objective.inside] += rows[at]
            norms = np.linalg.norm(P, axis=0)
            C = P / norms
            try:
                with np.errstate(all="ignore"):
                    value, gradient = objective(C)
            except np.linalg.LinAlgError:
                value, gradient = np.inf, C
            if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
                return 1e3, np.zeros_like(change)
            if value < best[0]:
                best[:] = value, C
            if used % 50 == 0:
                progress(f"{label}: {self.gradients + used} gradients, objective {best[0]:.9g}")
            gradient = (gradient - C * np.sum(C * gradient, axis=0)) / norms / value
            rows = np.zeros((steps, bands))
            rows[at] = gradient[objective.inside]
            return np.log(value / scale), np.matmul(whitener, rows[:, :, None]).ravel()

        options = {"maxcor": 40, "maxiter": most, "maxfun": most, "ftol": 0.0, "gtol": accuracy}
        start = np.zeros(steps * bands)
        try:
            answer = scipy.optimize.minimize(
                log_objective, start, jac=True, method="L-BFGS-B", options=options
            )
            reached = bool(np.abs(answer.jac).max() <= accuracy) or used < 5
        except KeyboardInterrupt:
            reached, self.interrupted = False, True
        self.C = best[1]
        self.gradients, self.left = self.gradients + used, self.left - used
        return reached


def _start(start, bands, steps):
    """The given diagonals, or the square root of the prefix workload cut to the band."""
    C = np.tile(root_series(bands, -0.5)[:, None], (1, steps))
    if start is not None:
        C = finite_array("start", start, 2)
        if C.shape != (bands, steps):
            raise refuse("start", f"shape {C.shape}", f"pass diagonals of shape {(bands, steps)}")
        if not np.all(C[0]):
            raise refuse("start", "a zero on the diagonal", "pass an invertible C")
    C = np.where(inside(bands, steps), C, 0.0)
    return C / np.linalg.norm(C, axis=0)


def _smallest_eigenvalue(X):
    return float(scipy.linalg.eigvals_banded(X, lower=True, select="i", select_range=(0, 0))[0])
