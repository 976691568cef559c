"""Problem P1 in arrays: minimise tr(Q X^-1) over X = C'C, diag X = 1, X banded (paper, B.2)."""

import dataclasses
import sys

import numpy as np
import scipy.linalg
from jaxtyping import Float

from momentdp._checks import finite_array, number, refuse, symmetric


@dataclasses.dataclass(frozen=True)
class P1Solution:
    """What every solver here returns.

    ``factor`` describes C of sensitivity 1 by ``structure``: "dense": C itself (T, T); "banded":
    ``factor[k, j] = C[j + k, j]`` (bands, T); "toeplitz" and "inverse_banded": the first column
    of C or of C^-1, cut to its coefficients. Toeplitz factors are already scaled.

    ``objective`` is tr(Q X^-1) and ``dual_bound`` a proven lower bound on it over the class (NaN
    where none is known), both with the caller's Q and the regularisation asked for; ``gap`` is
    (objective - dual_bound) / objective. ``converged`` False means that the solver stopped early.
    """

    structure: str
    factor: np.ndarray
    steps: int
    objective: float
    dual_bound: float
    converged: bool
    iterations: int
    warnings: tuple[str, ...] = ()
    lambda_min: float = float("nan")
    history: tuple[tuple[float, float], ...] = ()

    @property
    def gap(self) -> float:
        """Relative duality gap, never below zero; NaN where no bound is known."""
        gap = (self.objective - self.dual_bound) / self.objective
        return max(gap, 0.0)  # in this order, since max(0.0, nan) is 0.0

    @property
    def strategy_matrix(self) -> Float[np.ndarray, "steps steps"]:
        """C, lower triangular, sensitivity 1 (single participation)."""
        if self.structure == "dense":
            return self.factor
        if self.structure == "banded":
            return dense_from_diagonals(self.factor)
        column = np.zeros(self.steps)
        column[: len(self.factor)] = self.factor
        matrix = np.tril(scipy.linalg.toeplitz(column))
        if self.structure == "inverse_banded":
            return scipy.linalg.solve_triangular(matrix, np.eye(self.steps), lower=True)
        return matrix


def dense_from_diagonals(
    diagonals: Float[np.ndarray, "bands steps"],
) -> Float[np.ndarray, "steps steps"]:
    """Lower-triangular matrix from LAPACK's lower band storage."""
    steps = diagonals.shape[1]
    return sum(np.diag(d[: steps - k], -k) for k, d in enumerate(diagonals))


def factor_of(Q, factor, name: str = "Q") -> Float[np.ndarray, "steps rank"]:
    """F with Q = F F', of as few columns as Q has rank; refuses a Q that is not PSD."""
    if (Q is None) == (factor is None):
        raise refuse(name, "both or neither of Q and factor", "pass exactly one of them")
    if factor is not None:
        F = finite_array("factor", factor, 2)
        if F.shape[1] > F.shape[0]:
            F = _psd_root(F @ F.T, "factor")
    else:
        F = _psd_root(symmetric(name, Q), name)
    if not np.any(F):
        raise refuse(name, "all zeros", "pass a Q that depends on the noise")
    return F


def _psd_root(Q, name):
    values, vectors = np.linalg.eigh(Q)
    if values[0] < -1e-10 * max(values[-1], 0.0) or values[-1] < 0:
        raise refuse(name, f"smallest eigenvalue {values[0]:.3g}", "pass a PSD matrix")
    keep = values > 1e-15 * values[-1]
    return vectors[:, keep] * np.sqrt(values[keep])


def ridge_of(F: Float[np.ndarray, "steps rank"], regularisation: float) -> float:
    """eps tr(Q) / T: what the regularisation eps adds to the diagonal of Q."""
    return number("regularisation", regularisation, 0.0) * float(np.sum(F * F)) / len(F)


def lower_from_gram(X: Float[np.ndarray, "steps steps"]) -> Float[np.ndarray, "steps steps"]:
    """Lower-triangular C with C'C = X and positive diagonal (a Cholesky from the last row up)."""
    return np.linalg.cholesky(X[::-1, ::-1]).T[::-1, ::-1]


def progress(text: str) -> None:
    """One line that replaces itself, on a terminal only."""
    if sys.stderr.isatty():
        end = "" if text else "\r"  # an empty text wipes the line
        print(f"\r{text:<78}", end=end, file=sys.stderr, flush=True)


def rank_warning(F: Float[np.ndarray, "steps rank"]) -> list[str]:
    """The sentence for a Q without a full-rank term, or nothing."""
    rank = int(np.linalg.matrix_rank(F))
    if rank == len(F):
        return []
    return [
        f"no minimiser may exist: Q has rank {rank} < {len(F)}, so better and better X tend to a "
        "singular matrix with unbounded noise at single steps; pass regularisation or a floor"
    ]


def gram_diagonals(
    C: Float[np.ndarray, "bands steps"], floor: float = 0.0
) -> Float[np.ndarray, "bands steps"]:
    """X = (1 - floor) C'C + floor I, all in lower band storage."""
    bands, steps = C.shape
    X = np.zeros_like(C)
    for k in range(bands):
        X[k, : steps - k] = np.sum(C[k:, : steps - k] * C[: bands - k, k:], axis=0)
    X *= 1 - floor
    X[0] += floor
    return X


def banded_factor(X: Float[np.ndarray, "bands steps"]) -> Float[np.ndarray, "bands steps"]:
    """The banded lower-triangular C with C'C = X, both in lower band storage, unit columns.

    LAPACK's banded Cholesky starts at the first row, this one at the last: storage reversed.
    """
    C = scipy.linalg.cholesky_banded(X[::-1, ::-1], lower=False)[::-1, ::-1]
    return C / np.linalg.norm(C, axis=0)


def diagonals_of(M: Float[np.ndarray, "steps steps"], bands: int):
    """The lowest ``bands`` diagonals of M on and below the main one, in lower band storage."""
    diagonals = np.zeros((bands, len(M)))
    for k in range(bands):
        diagonals[k, : len(M) - k] = np.diag(M, -k)
    return diagonals


def root_series(size: int, power: float) -> Float[np.ndarray, " size"]:
    """The first coefficients of (1 - x)^power: -1/2 is the root of the prefix sums A, 1/2 that of
    its inverse."""
    k = np.arange(1, size)
    return np.cumprod(np.concatenate([[1.0], (k - 1 - power) / k]))
