"""Toeplitz strategies C = L diag(s): L by few coefficients of itself or of its inverse."""

from functools import cached_property

import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import toeplitz as jp_toeplitz
from jaxtyping import Float
from scipy.linalg import toeplitz
from scipy.signal import fftconvolve, lfilter

from momentdp import sensitivity
from momentdp.mechanisms.structure import Rows, Square, Structure, frozen

Coef = Float[np.ndarray, " _"]  # a length of its own, up to steps
FEW = 64  # coefficients up to which a direct filter beats the FFT
SHORT = 4096  # steps up to which a filter of any length takes less than a second


def filter_rows(coef: Coef, rows: Rows) -> Rows:
    """Each row times the lower-triangular Toeplitz matrix with first column ``coef``."""
    if len(coef) <= FEW or rows.shape[1] <= SHORT // 4:
        return lfilter(coef, [1.0, 0.0], rows, axis=1)  # the 0 keeps scipy off its slow FIR path
    return fftconvolve(rows, coef[None], axes=1)[:, : rows.shape[1]]


def inverse_series(coef: Coef, steps: int) -> Coef:
    """The first ``steps`` coefficients of 1 / (c_0 + c_1 x + ...): the inverse's first column.

    Few coefficients or steps: a recursive filter, O(steps m), exact term by term. Else Newton's
    iteration y <- y (2 - c y), which doubles the right terms, O(steps log steps) by FFT; its
    rounding is relative to the largest term, so it is for inverses that do not grow.
    """
    if len(coef) <= FEW or steps <= SHORT:
        return lfilter([1.0], coef, np.eye(1, steps)[0])
    series = np.array([1.0 / coef[0]])
    while len(series) < steps:
        size = min(2 * len(series), steps)
        correction = -fftconvolve(series, coef[:size])[:size]
        correction[0] += 2.0
        series = fftconvolve(series, correction)[:size]
    return series


def series_root(chi: Coef) -> Coef:
    """Power series with square ``chi`` (chi_0 = 1), by equating coefficients."""
    root = np.zeros_like(chi)
    root[0] = 1.0
    for k in range(1, len(chi)):
        root[k] = (chi[k] - root[1:k] @ root[k - 1 : 0 : -1]) / 2.0
    return root


class Toeplitz(Structure):
    """C = L diag(column_scale), L lower-triangular Toeplitz; the identity is strategy_coef [1].

    Exactly one of ``strategy_coef`` (first column of L) and ``noising_coef`` (of L^-1) is given,
    with at most ``steps`` entries; what is left out is zero.
    """

    def __init__(
        self,
        steps: int,
        strategy_coef: Coef | None = None,
        noising_coef: Coef | None = None,
        column_scale: Float[np.ndarray, " steps"] | None = None,
    ):
        self.steps = steps
        self._strategy_coef = None if strategy_coef is None else frozen(strategy_coef)
        self._noising_coef = None if noising_coef is None else frozen(noising_coef)
        self.column_scale = frozen(np.ones(steps) if column_scale is None else column_scale)

    @cached_property
    def strategy_coef(self) -> Coef:
        if self._strategy_coef is not None:
            return self._strategy_coef
        return inverse_series(self._noising_coef, self.steps)

    @cached_property
    def noising_coef(self) -> Coef:
        if self._noising_coef is not None:
            return self._noising_coef
        return inverse_series(self._strategy_coef, self.steps)

    def _column(self, coef: Coef) -> Coef:
        return np.pad(coef, (0, self.steps - len(coef)))

    def strategy_matrix(self) -> Square:
        L = np.tril(toeplitz(self._column(self.strategy_coef)))
        return L * self.column_scale

    def noising_matrix(self) -> Square:
        """Exactly lower triangular, which rounding in an FFT filter would not be."""
        return np.tril(toeplitz(self._column(self.noising_coef))) / self.column_scale[:, None]

    def _inverse_filter(self, rows: Rows) -> Rows:
        few = self._strategy_coef
        if few is not None and len(few) <= FEW:
            return lfilter([1.0], few, rows, axis=1)
        return filter_rows(self.noising_coef, rows)

    def solve(self, w: Rows) -> Rows:
        return self._inverse_filter(w) / self.column_scale

    def solve_transposed(self, g: Rows) -> Rows:
        return self._inverse_filter((g / self.column_scale)[:, ::-1])[:, ::-1]

    def scaled(self, factor: float) -> "Toeplitz":
        scale = factor * self.column_scale
        return Toeplitz(self.steps, self._strategy_coef, self._noising_coef, scale)

    def unit_columns(self) -> "Toeplitz":
        """The same L with every column of C scaled to norm one."""
        norms = np.sqrt(np.cumsum(self._column(self.strategy_coef) ** 2))[::-1]
        return Toeplitz(self.steps, self._strategy_coef, self._noising_coef, 1.0 / norms)

    def sensitivity(self, min_sep, max_participations) -> tuple[float, bool]:
        sensitivity.check_pattern(self.steps, min_sep, max_participations)
        scale = self.column_scale
        if np.ptp(scale) == 0:
            coef = scale[0] * self.strategy_coef
            return sensitivity.of_toeplitz(coef, self.steps, min_sep, max_participations)
        if max_participations == 1:
            norms = np.sqrt(np.cumsum(self._column(self.strategy_coef) ** 2))[::-1]
            return float((norms * scale).max()), True
        return sensitivity.of_matrix(self.strategy_matrix(), min_sep, max_participations)

    def buffers(self) -> int:
        given = self._strategy_coef if self._noising_coef is None else self._noising_coef
        return len(given) - 1

    def to_jax_privacy(self):
        """A streaming matrix where few strategy coefficients are known, else the dense C^-1."""
        few = self._strategy_coef
        if few is None or len(few) > FEW:
            return self.noising_matrix()
        stream = jp_toeplitz.inverse_as_streaming_matrix(few)
        return stream.scale_rows_and_columns(row_scale=jnp.asarray(1 / self.column_scale))
