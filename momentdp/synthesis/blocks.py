"""Objective, gradient and metric of banded P1 in O(T b (b + r)), by blocks of the band width.

With blocks of size b a banded lower-triangular C has lower-triangular diagonal blocks D_k and
strictly upper-triangular blocks E_k below them, so every recursion runs over T / b small matrices.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float

from momentdp.synthesis.problem import banded_factor, gram_diagonals


def inside(bands: int, steps: int) -> Bool[np.ndarray, "bands steps"]:
    """Which places of lower band storage lie in the matrix."""
    return np.add.outer(np.arange(bands), np.arange(steps)) < steps


class BandedObjective:
    """tr((F F' + ridge I) X^-1), X = (1 - floor) C'C + floor I, of C (bands, T) by diagonals."""

    def __init__(self, F: Float[np.ndarray, "steps rank"], ridge: float, floor: float, bands: int):
        self.bands, self.steps = bands, len(F)
        self.block = max(bands, 2)
        self.count = -(-self.steps // self.block)
        self.floor = floor
        # The recursion for the ridge needs C'C = X: with a floor the ridge becomes T columns.
        self.F = np.hstack([F, np.sqrt(ridge) * np.eye(len(F))]) if floor and ridge else F
        self.ridge = 0.0 if floor else ridge
        self.inside = inside(bands, self.steps)
        k, j = np.nonzero(self.inside)
        self.place = (j + k) // self.block - j // self.block, j // self.block
        self.place += (j + k) % self.block, j % self.block

    def __call__(self, C: Float[np.ndarray, "bands steps"]):
        """Value and gradient in the entries of the band."""
        D, E = self._blocks(C)
        if self.floor:
            W = scipy.linalg.solveh_banded(gram_diagonals(C, self.floor), self.F, lower=True)
            value, rows = float(np.sum(W * self.F)), self._rows(W)
            product = D @ rows
            product[1:] += E[:-1] @ rows[:-1]
            gradient = -2 * (1 - self.floor) * _neighbours(product, rows)
        else:
            Y, W = _solve(D, E, self._rows(self.F))
            value, gradient = float(np.sum(Y * Y)), -2 * _neighbours(Y, W)
            if self.ridge:
                trace, slope = _inverse_norm(D, E)
                value += self.ridge * (trace - (self.count * self.block - self.steps))
                gradient += self.ridge * slope
        out = np.zeros_like(C)
        out[self.inside] = gradient[self.place]
        return value, out

    def metric(self, C: Float[np.ndarray, "bands steps"]) -> Float[np.ndarray, "steps bands bands"]:
        """Positive definite approximation of the Hessian for each row of C, entries left to right.

        d^2 tr(Q X^-1) = 2 tr(G dX K dX) with K = X^-1, G = K Q K. For dX = dC'C + C'dC the terms
        within one row i are dc' G dc + (C G C')_ii dc' K dc on the window of that row; the ridge's
        part of G, K^2, is taken within the window.
        """
        D, E = self._blocks(banded_factor(gram_diagonals(C, self.floor)))
        Y, W = _solve(D, E, self._rows(self.F))
        inverse, A, covariance = _covariance(D, E)
        pulled = inverse.transpose(0, 2, 1) @ _weights(A) @ inverse
        scale = np.sum(Y * Y, axis=2) + self.ridge * np.einsum("kii->ki", pulled)
        K = self._windows(covariance, -A[1:] @ covariance[:-1])
        G = self._windows(W @ W.transpose(0, 2, 1), W[1:] @ W[:-1].transpose(0, 2, 1))
        M = G + self.ridge * K @ K + scale.reshape(-1)[: self.steps, None, None] * K
        i, m = np.indices((self.steps, self.bands))
        missing = i - (self.bands - 1) + m < 0
        M[missing] = 0.0
        M.transpose(0, 2, 1)[missing] = 0.0
        i, m = np.nonzero(missing)
        M[i, m, m] = 1.0
        return M

    def _blocks(self, C):
        both = np.zeros((2, self.count, self.block, self.block))
        both[self.place] = C[self.inside]
        pad = np.arange(self.steps, self.count * self.block)
        both[0, pad // self.block, pad % self.block, pad % self.block] = 1.0
        return both

    def _rows(self, F):
        out = np.zeros((self.count * self.block, F.shape[1]))
        out[: self.steps] = F
        return out.reshape(self.count, self.block, -1)

    def _windows(self, own, beside):
        """(T, b, b) windows ending on the diagonal, of a symmetric matrix given by its diagonal
        blocks and the blocks below them."""
        b = self.block
        pairs = np.zeros((self.count, 2 * b, 2 * b))
        pairs[1:, :b, :b], pairs[:, b:, b:] = own[:-1], own
        pairs[1:, b:, :b], pairs[1:, :b, b:] = beside, beside.transpose(0, 2, 1)
        i = np.arange(self.steps)
        at = (b + i % b - self.bands + 1)[:, None] + np.arange(self.bands)
        return pairs[(i // b)[:, None, None], at[:, :, None], at[:, None, :]]


def _neighbours(left, right):
    """The diagonal blocks and the blocks below them of left right', stacked."""
    out = np.zeros((2, len(left), left.shape[1], left.shape[1]))
    out[0] = left @ right.transpose(0, 2, 1)
    out[1, :-1] = left[1:] @ right[:-1].transpose(0, 2, 1)
    return out


def _solve(D, E, rows):
    """Y = C^-T F from the last block up, W = C^-1 Y from the first down."""
    inverse = np.linalg.inv(D)
    Y, W = np.empty_like(rows), np.empty_like(rows)
    Y[-1] = inverse[-1].T @ rows[-1]
    for k in range(len(D) - 2, -1, -1):
        Y[k] = inverse[k].T @ (rows[k] - E[k].T @ Y[k + 1])
    W[0] = inverse[0] @ Y[0]
    for k in range(1, len(D)):
        W[k] = inverse[k] @ (Y[k] - E[k - 1] @ W[k - 1])
    return Y, W


def _covariance(D, E):
    """D^-1, the step A from block to block of z = C^-1 w up to its sign, and cov(z) by block."""
    inverse = np.linalg.inv(D)
    A = np.zeros_like(D)
    A[1:] = inverse[1:] @ E[:-1]
    covariance = inverse @ inverse.transpose(0, 2, 1)
    for k in range(1, len(D)):
        covariance[k] += A[k] @ covariance[k - 1] @ A[k].T
    return inverse, A, covariance


def _weights(A):
    """Sensitivity of ||C^-1||^2 to each block's covariance, from the last block up."""
    weight = np.broadcast_to(np.eye(A.shape[1]), A.shape).copy()
    for k in range(len(A) - 1, 0, -1):
        weight[k - 1] += A[k].T @ weight[k] @ A[k]
    return weight


def _inverse_norm(D, E):
    """||C^-1||^2, the sum of the variances of z = C^-1 w, and its gradient."""
    inverse, A, covariance = _covariance(D, E)
    pulled = inverse.transpose(0, 2, 1) @ _weights(A)
    slope = np.zeros((2, *D.shape))
    slope[0] = -2 * pulled @ covariance
    slope[1, :-1] = 2 * pulled[1:] @ A[1:] @ covariance[:-1]
    return float(np.einsum("kii->", covariance)), slope
