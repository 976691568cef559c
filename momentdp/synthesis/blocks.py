"""Objective and gradient of banded P1 in O(T b (b + r)), by blocks of the band width.

With blocks of size b a banded lower-triangular C has lower-triangular diagonal blocks D_k and
strictly upper-triangular blocks E_k below them, so every recursion runs over T / b small matrices.
"""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from momentdp.synthesis.problem import gram_diagonals


class BandedLayout:
    """Index maps between diagonals[k, j] = C[j + k, j] and the blocks of C."""

    def __init__(self, bands: int, steps: int):
        self.bands, self.steps = bands, steps
        self.block = max(bands, 2)
        self.count = -(-steps // self.block)
        self.padded = self.count * self.block
        k, j = np.indices((bands, steps))
        self.inside = j + k < steps
        k, j = k[self.inside], j[self.inside]
        b = self.block
        self.row, self.column, self.below = (j + k) % b, j % b, (j + k) // b - j // b
        self.at = j // b

    def fill(self, entries):
        """Diagonals (bands, T) from the entries inside the matrix, in order."""
        P = np.zeros((self.bands, self.steps))
        P[self.inside] = entries
        return P

    def blocks(self, diagonals):
        """(D, E): (count, b, b) each, C padded with the identity; E[k] couples k to k + 1."""
        b, values = self.block, diagonals[self.inside]
        both = np.zeros((2, self.count, b, b))
        both[self.below, self.at, self.row, self.column] = values
        pad = np.arange(self.steps, self.padded)
        both[0, pad // b, pad % b, pad % b] = 1.0
        return both[0], both[1]

    def diagonals(self, D, E):
        """The in-band entries of block gradients, zero outside the matrix."""
        out = np.zeros((self.bands, self.steps))
        both = np.stack([D, E])
        out[self.inside] = both[self.below, self.at, self.row, self.column]
        return out

    def rows(self, F):
        """F (T, r) as (count, b, r), padded with zeros."""
        out = np.zeros((self.padded, F.shape[1]))
        out[: self.steps] = F
        return out.reshape(self.count, self.block, -1)


class BandedObjective:
    """tr((F F' + ridge I) X^-1), X = (1 - floor) C'C + floor I, and its gradient.

    Called with the free entries of P, where column j of C is column j of P over its norm.
    """

    def __init__(self, F, ridge: float, floor: float, bands: int):
        self.layout = BandedLayout(bands, len(F))
        self.ridge, self.floor = ridge, floor
        # X^-1 has no recursion of its own once the floor is added: the ridge becomes T columns.
        self.F = np.hstack([F, np.sqrt(ridge) * np.eye(len(F))]) if floor and ridge else F
        self.rows = self.layout.rows(self.F)

    def normalized(self, p) -> Float[np.ndarray, "bands steps"]:
        """Unit columns from free entries."""
        P = self.layout.fill(p)
        return P / np.linalg.norm(P, axis=0)

    def __call__(self, p):
        P = self.layout.fill(p)
        norms = np.linalg.norm(P, axis=0)
        C = P / norms
        try:
            with np.errstate(all="ignore"):
                value, gradient = self.at(C)
        except np.linalg.LinAlgError:
            value, gradient = np.inf, C
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            return np.inf, np.zeros_like(p)
        gradient = (gradient - C * np.sum(C * gradient, axis=0)) / norms
        return value, gradient[self.layout.inside]

    def at(self, C: Float[np.ndarray, "bands steps"]) -> tuple[float, np.ndarray]:
        """Value and gradient in the entries of the band of C itself."""
        D, E = self.layout.blocks(C)
        if self.floor:
            value, gradient_D, gradient_E = self._with_floor(C, D, E)
        else:
            value, gradient_D, gradient_E = _quadratic(self.rows, D, E)
            if self.ridge:
                trace, ridge_D, ridge_E = _inverse_norm(D, E)
                value += self.ridge * (trace - (self.layout.padded - self.layout.steps))
                gradient_D += self.ridge * ridge_D
                gradient_E += self.ridge * ridge_E
        return value, self.layout.diagonals(gradient_D, gradient_E)

    def _with_floor(self, C, D, E):
        W = scipy.linalg.solveh_banded(gram_diagonals(C, self.floor), self.F, lower=True)
        rows = self.layout.rows(W)
        product = D @ rows
        product[1:] += E[:-1] @ rows[:-1]
        scale = -2 * (1 - self.floor)
        return float(np.sum(W * self.F)), *_outer_blocks(scale, product, rows)


def _outer_blocks(scale, left, right):
    """The diagonal and the lower neighbour blocks of scale * left right'."""
    beside = np.zeros((len(left), left.shape[1], left.shape[1]))
    beside[:-1] = scale * left[1:] @ right[:-1].transpose(0, 2, 1)
    return scale * left @ right.transpose(0, 2, 1), beside


def _quadratic(rows, D, E):
    """||C^-T F||^2 and its gradient -2 Y W': Y = C^-T F from the last block up, W = C^-1 Y."""
    inverse = np.linalg.inv(D)
    Y, W = np.empty_like(rows), np.empty_like(rows)
    Y[-1] = inverse[-1].T @ rows[-1]
    for k in range(len(D) - 2, -1, -1):
        Y[k] = inverse[k].T @ (rows[k] - E[k].T @ Y[k + 1])
    W[0] = inverse[0] @ Y[0]
    for k in range(1, len(D)):
        W[k] = inverse[k] @ (Y[k] - E[k - 1] @ W[k - 1])
    return float(np.sum(Y * Y)), *_outer_blocks(-2.0, Y, W)


def _inverse_norm(D, E):
    """||C^-1||^2 = sum of the variances of z = C^-1 w, by propagating their block covariance
    forward, and its gradient by propagating the weight of that covariance backward."""
    inverse = np.linalg.inv(D)
    inverse_t = inverse.transpose(0, 2, 1)
    # A[k] takes block k - 1 of z to block k, up to its sign.
    A = np.zeros_like(D)
    A[1:] = inverse[1:] @ E[:-1]
    covariance = inverse @ inverse_t
    weight = np.broadcast_to(np.eye(D.shape[1]), D.shape).copy()
    for k in range(1, len(D)):
        covariance[k] += A[k] @ covariance[k - 1] @ A[k].T
    for k in range(len(D) - 1, 0, -1):
        weight[k - 1] += A[k].T @ weight[k] @ A[k]
    pulled = inverse_t @ weight
    gradient_E = np.zeros_like(E)
    gradient_E[:-1] = 2 * pulled[1:] @ A[1:] @ covariance[:-1]
    return float(np.einsum("kii->", covariance)), -2 * pulled @ covariance, gradient_E
