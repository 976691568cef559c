"""Dense strategies: the plain twin of every structure, correct for anything lower triangular."""

from functools import cached_property

import numpy as np
from scipy.linalg import solve_triangular

from momentdp import sensitivity
from momentdp.mechanisms.structure import Rows, Square, Structure, frozen


class Dense(Structure):
    """C given as a matrix; O(steps^2) memory, O(rows steps^2) a solve."""

    def __init__(self, strategy_matrix: Square):
        self._strategy_matrix = frozen(strategy_matrix)
        self.steps = len(strategy_matrix)

    def strategy_matrix(self) -> Square:
        return self._strategy_matrix

    @cached_property
    def _inverse(self) -> Square:
        return frozen(solve_triangular(self._strategy_matrix, np.eye(self.steps), lower=True))

    def noising_matrix(self) -> Square:
        return self._inverse

    def solve(self, w: Rows) -> Rows:
        return solve_triangular(self._strategy_matrix, w.T, lower=True).T

    def solve_transposed(self, g: Rows) -> Rows:
        return solve_triangular(self._strategy_matrix, g.T, lower=True, trans="T").T

    def scaled(self, factor: float) -> "Dense":
        return Dense(factor * self._strategy_matrix)

    def sensitivity(self, min_sep, max_participations) -> tuple[float, bool]:
        return sensitivity.of_matrix(self._strategy_matrix, min_sep, max_participations)

    def buffers(self) -> int:
        return self.steps - 1
