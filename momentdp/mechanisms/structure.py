"""The contract that every strategy structure keeps; `dense.Dense` is its plain twin and oracle."""

from abc import ABC, abstractmethod

import numpy as np
from jaxtyping import Float

Rows = Float[np.ndarray, "rows steps"]
Square = Float[np.ndarray, "steps steps"]


def frozen(array: np.ndarray) -> np.ndarray:
    """A float64 copy that nobody can change: sensitivities are computed once and kept."""
    copy = np.array(array, dtype=np.float64, order="K")
    copy.setflags(write=False)
    return copy


class Structure(ABC):
    """A lower-triangular (steps, steps) strategy matrix C, known by its structure.

    Noise is z = C^-1 w with w independent, so K = C^-1 C^-T. Arrays hold one sequence a row.
    """

    steps: int

    @abstractmethod
    def strategy_matrix(self) -> Square:
        """C, dense."""

    @abstractmethod
    def solve(self, w: Rows) -> Rows:
        """Each row becomes C^-1 w."""

    @abstractmethod
    def solve_transposed(self, g: Rows) -> Rows:
        """Each row becomes C^-T g: damage is a weighted sum of its squares."""

    @abstractmethod
    def scaled(self, factor: float) -> "Structure":
        """factor C."""

    @abstractmethod
    def sensitivity(self, min_sep: int | None, max_participations: int) -> tuple[float, bool]:
        """Sensitivity, and whether it is exact (else an upper bound)."""

    @abstractmethod
    def buffers(self) -> int:
        """Past vectors of d numbers to keep while noise is generated step by step."""

    def noising_matrix(self) -> Square:
        """C^-1, dense."""
        return self.solve(np.eye(self.steps)).T

    def to_jax_privacy(self):
        """C^-1 as jax-privacy's privatizer takes it: z = (this) w."""
        return self.noising_matrix()
