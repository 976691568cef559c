"""The public face of a mechanism: a name and a strategy matrix C of some structure."""

from dataclasses import dataclass, replace

import jax
import numpy as np
from jax_privacy.matrix_factorization.banded import ColumnNormalizedBanded
from jax_privacy.matrix_factorization.streaming_matrix import StreamingMatrix
from jaxtyping import Float

from momentdp._checks import count, finite_array, refuse
from momentdp.mechanisms.banded import Banded
from momentdp.mechanisms.dense import Dense
from momentdp.mechanisms.structure import Structure
from momentdp.mechanisms.toeplitz import Toeplitz
from momentdp.sensitivity import check_pattern

Matrix = Float[np.ndarray, "steps steps"]


@dataclass(frozen=True, eq=False)
class Mechanism:
    """Correlated noise z = C^-1 w over ``steps`` steps, w independent standard normal.

    Build one with a ``from_...`` constructor. C is the (steps, steps) lower-triangular strategy
    matrix (jax-privacy's name; the encoder), C^-1 the noising matrix, K = C^-1 C^-T the temporal
    covariance at unit noise multiplier (paper 2.1).
    """

    structure: Structure
    name: str = "mechanism"

    @classmethod
    def from_strategy_matrix(cls, matrix, name: str = "mechanism") -> "Mechanism":
        """From C (steps, steps).

        Raises:
            ValueError: C is not square, finite, lower triangular, or is singular.
        """
        return cls(Dense(_lower_triangular("strategy_matrix", matrix)), name)

    @classmethod
    def from_noising_matrix(cls, matrix, name: str = "mechanism") -> "Mechanism":
        """From C^-1 (steps, steps); the same errors as ``from_strategy_matrix``."""
        inverse = Dense(_lower_triangular("noising_matrix", matrix))
        return cls(Dense(inverse.noising_matrix()), name)

    @classmethod
    def from_toeplitz(
        cls,
        *,
        steps: int,
        strategy_coef=None,
        noising_coef=None,
        column_normalize: bool = False,
        name: str = "mechanism",
    ) -> "Mechanism":
        """From the leading coefficients of C, or of C^-1; those left out are zero.

        Args:
            steps: horizon T.
            strategy_coef: (m,) first column of C, m <= T.
            noising_coef: (m,) first column of C^-1, m <= T. Exactly one of the two.
            column_normalize: scale every column of C to norm 1.

        Raises:
            ValueError: none or both given, too many, not finite, or a leading zero (singular).
        """
        steps = count("steps", steps)
        if (strategy_coef is None) == (noising_coef is None):
            raise refuse("strategy_coef, noising_coef", "none or both", "pass exactly one of them")
        argument = "strategy_coef" if noising_coef is None else "noising_coef"
        coef = finite_array(argument, strategy_coef if noising_coef is None else noising_coef, 1)
        if len(coef) > steps:
            raise refuse(argument, f"{len(coef)} entries", f"pass at most steps = {steps}")
        if coef[0] == 0:
            raise refuse(argument, "a leading 0", "pass a first coefficient other than 0")
        structure = Toeplitz(steps, **{argument: coef})
        return cls(structure.unit_columns() if column_normalize else structure, name)

    @classmethod
    def from_banded(cls, diagonals, name: str = "mechanism") -> "Mechanism":
        """From ``diagonals`` (bands, steps), diagonals[k, j] = C[j + k, j]."""
        diagonals = finite_array("diagonals", diagonals, 2)
        if len(diagonals) > diagonals.shape[1]:
            raise refuse(
                "diagonals", f"shape {diagonals.shape}", "pass (bands, steps), bands <= steps"
            )
        if not np.all(diagonals[0]):
            raise refuse("diagonals", "a zero on the main diagonal", "pass a non-singular strategy")
        return cls(Banded(diagonals), name)

    @classmethod
    def from_jax_privacy(cls, obj, steps: int, name: str = "mechanism") -> "Mechanism":
        """From what jax-privacy's optimisers return.

        Args:
            obj: Toeplitz strategy coefficients (m,), a strategy matrix (steps, steps), a
                ColumnNormalizedBanded, a BufferedToeplitz, or a StreamingMatrix, which jax-privacy
                uses for C^-1.
            steps: horizon T, checked against the object's own where it has one.
        """
        steps = count("steps", steps)
        if isinstance(obj, ColumnNormalizedBanded):
            diagonals = cls.from_banded(np.asarray(obj.params).T).structure.diagonals
            made = cls.from_banded(diagonals / np.linalg.norm(diagonals, axis=0), name)
        elif isinstance(obj, StreamingMatrix) or hasattr(obj, "inverse_as_streaming_matrix"):
            with jax.enable_x64(True):
                inverse = (
                    obj if isinstance(obj, StreamingMatrix) else obj.inverse_as_streaming_matrix()
                )
                made = cls.from_noising_matrix(np.asarray(inverse.materialize(steps)), name)
        elif np.ndim(obj) == 1:
            return cls.from_toeplitz(steps=steps, strategy_coef=np.asarray(obj), name=name)
        else:
            made = cls.from_strategy_matrix(np.asarray(obj), name)
        return made.require_steps(steps)

    @property
    def steps(self) -> int:
        """Horizon T."""
        return self.structure.steps

    @property
    def strategy_matrix(self) -> Matrix:
        """C, dense (made on demand)."""
        return self.structure.strategy_matrix()

    @property
    def noising_matrix(self) -> Matrix:
        """C^-1, dense (made on demand)."""
        return self.structure.noising_matrix()

    @property
    def buffers(self) -> int:
        """Past noise vectors that a step-by-step generator keeps in memory."""
        return self.structure.buffers()

    def __repr__(self) -> str:
        return f"Mechanism({self.name!r}, {self.steps} steps, {type(self.structure).__name__})"

    def require_steps(self, steps: int) -> "Mechanism":
        """Itself, if its horizon is ``steps``; ValueError otherwise."""
        if self.steps != steps:
            raise refuse(
                f"mechanism {self.name!r}", f"horizon {self.steps}", f"build it for steps = {steps}"
            )
        return self

    def sensitivity(self, min_sep: int | None = None, max_participations: int = 1) -> float:
        """L2 sensitivity to one example that takes part at most ``max_participations`` times,
        any two of them at least ``min_sep`` steps apart (an upper bound where not exact)."""
        return self._known_sensitivity(min_sep, max_participations)[0]

    def sensitivity_is_exact(self, min_sep: int | None = None, max_participations: int = 1) -> bool:
        """Whether ``sensitivity`` of the same arguments is exact (else an upper bound)."""
        return self._known_sensitivity(min_sep, max_participations)[1]

    def _known_sensitivity(self, *pattern) -> tuple[float, bool]:
        # Kept with the structure, which never changes: repeated participation can take seconds.
        known = vars(self.structure).setdefault("_sensitivities", {})
        key = check_pattern(self.steps, *pattern)
        if key not in known:
            value, is_exact = self.structure.sensitivity(*pattern)
            if not 0 < value < np.inf:
                raise refuse(f"mechanism {self.name!r}", f"sensitivity {value}", "rescale C")
            known[key] = value, is_exact
        return known[key]

    def normalized(self) -> "Mechanism":
        """The same noise shape at single-participation sensitivity 1."""
        return replace(self, structure=self.structure.scaled(1.0 / self.sensitivity()))

    def renamed(self, name: str) -> "Mechanism":
        """The same mechanism under another name."""
        return replace(self, name=name)

    def sample(self, key, shape: tuple[int, ...] = ()) -> Float[np.ndarray, "steps ..."]:
        """Correlated noise at unit multiplier: each of the ``shape`` coordinates has covariance K.

        Args:
            key: jax.random key; the same key gives every mechanism the same w.
        """
        with jax.enable_x64(True):
            w = np.asarray(jax.random.normal(key, (self.steps, *shape), dtype=np.float64))
        noise = self.structure.solve(w.reshape(self.steps, -1).T).T
        return np.ascontiguousarray(noise).reshape(self.steps, *shape)

    def to_jax_privacy(self):
        """What ``jax_privacy.noise_addition.matrix_factorization_privatizer`` takes as
        noising_matrix: a streaming C^-1 where the structure has one, else the dense matrix."""
        return self.structure.to_jax_privacy()


def _lower_triangular(argument: str, matrix) -> Matrix:
    matrix = finite_array(argument, matrix, 2)
    if matrix.shape[0] != matrix.shape[1]:
        raise refuse(argument, f"shape {matrix.shape}", "pass a square (steps, steps) matrix")
    above = float(np.abs(np.triu(matrix, 1)).max())
    if above > 0:
        raise refuse(
            argument, f"an entry {above:.3g} above the diagonal", "pass a lower-triangular matrix"
        )
    if not np.all(np.diag(matrix)):
        step = int(np.argmin(np.abs(np.diag(matrix))))
        raise refuse(argument, f"a zero at ({step}, {step})", "pass a non-singular matrix")
    return matrix


def check_mechanism(argument: str, m) -> Mechanism:
    """``m``, if it is a Mechanism; ValueError otherwise."""
    if not isinstance(m, Mechanism):
        mend = "pass a Mechanism: Mechanism.from_strategy_matrix(C), or a design's .mechanism"
        raise refuse(argument, type(m).__name__, mend)
    return m
