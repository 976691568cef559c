"""A lower bound on banded P1 from any near-optimal point (theory, Optimality)."""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from momentdp.synthesis.problem import dense_from_diagonals


def banded_bound(
    diagonals: Float[np.ndarray, "bands steps"],
    F: Float[np.ndarray, "steps rank"],
    ridge: float,
    bound_ridge: float | None = None,
) -> float:
    """Lower bound on min tr((F F' + ridge I) X^-1) over unit-diagonal X of this band.

    For any PSD L whose in-band off-diagonals vanish, ||(F, sqrt(ridge) I)' L^1/2||_*^2 / tr L is
    one. L is X^-1 (F F' + ridge I) X^-1 at the given C, its in-band off-diagonals set to zero and
    its diagonal raised until it is PSD. ``bound_ridge``, if given, replaces the ridge in L only.
    """
    bands, steps = diagonals.shape
    C = dense_from_diagonals(diagonals)
    S = scipy.linalg.solve_triangular(C, np.eye(steps), lower=True)
    ridge_in_L = ridge if bound_ridge is None else bound_ridge
    X_inverse = S @ S.T
    W = X_inverse @ F
    L = W @ W.T + ridge_in_L * (X_inverse @ X_inverse)
    for k in range(1, bands):
        i = np.arange(steps - k)
        L[i + k, i] = L[i, i + k] = 0.0
    try:
        root, raised = np.linalg.cholesky(L), 0.0
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(L)
        raised = max(0.0, -values[0])
        root = vectors * np.sqrt(values + raised)
    if ridge:
        # (F F' + ridge I)^1/2, from the few directions of F.
        U, s, _ = np.linalg.svd(F, full_matrices=False)
        F = (U * (np.sqrt(s**2 + ridge) - np.sqrt(ridge))) @ U.T
        F[np.diag_indices(steps)] += np.sqrt(ridge)
    singular_values = np.linalg.svd(root.T @ F, compute_uv=False)
    return float(singular_values.sum() ** 2 / (np.trace(L) + raised * steps))
