"""Banded strategies: b diagonals, O(rows steps b) a solve through LAPACK's banded routine."""

import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization.banded import ColumnNormalizedBanded
from jaxtyping import Float
from scipy.linalg.lapack import dtbtrs

from momentdp import sensitivity
from momentdp.mechanisms.structure import Rows, Square, Structure, frozen


class Banded(Structure):
    """C from ``diagonals[k, j] = C[j + k, j]`` (bands, steps); entries past the edge are zero."""

    def __init__(self, diagonals: Float[np.ndarray, "bands steps"]):
        bands, self.steps = diagonals.shape
        inside = np.arange(self.steps) + np.arange(bands)[:, None] < self.steps
        self.diagonals = frozen(np.asfortranarray(np.where(inside, diagonals, 0.0)))

    def strategy_matrix(self) -> Square:
        matrix = np.zeros((self.steps, self.steps))
        for k, diagonal in enumerate(self.diagonals):
            columns = np.arange(self.steps - k)
            matrix[columns + k, columns] = diagonal[: self.steps - k]
        return matrix

    def solve(self, w: Rows) -> Rows:
        return dtbtrs(self.diagonals, w.T, uplo="L", trans="N")[0].T

    def solve_transposed(self, g: Rows) -> Rows:
        return dtbtrs(self.diagonals, g.T, uplo="L", trans="T")[0].T

    def scaled(self, factor: float) -> "Banded":
        return Banded(factor * self.diagonals)

    def sensitivity(self, min_sep, max_participations) -> tuple[float, bool]:
        return sensitivity.of_banded(self.diagonals, min_sep, max_participations)

    def buffers(self) -> int:
        return len(self.diagonals) - 1

    def to_jax_privacy(self):
        """Its streaming matrix normalises columns itself; other column norms need the matrix."""
        if np.allclose((self.diagonals**2).sum(axis=0), 1.0, rtol=1e-12):
            return ColumnNormalizedBanded(
                params=jnp.asarray(self.diagonals.T)
            ).inverse_as_streaming_matrix()
        return self.noising_matrix()
