"""Mechanisms of the literature beyond the catalogue, made from outside: a few coefficients through
``Mechanism.from_toeplitz``, an object of jax-privacy through ``Mechanism.from_jax_privacy``."""

import jax
import numpy as np
from jax_privacy.matrix_factorization.buffered_toeplitz import BufferedToeplitz

from momentdp._checks import number
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.mechanisms.toeplitz import series_root

# What jax-privacy's ``buffered_toeplitz.optimize(n=128)`` returns, which takes it a minute.
BLT_128 = {
    "buf_decay": (0.9907966722448198, 0.7948520982111916),
    "output_scale": (0.13405525682009034, 0.32825672195472716),
}


def blt() -> Mechanism:
    """Buffered linear Toeplitz (arXiv 2404.16706), two buffers, for the maximal prefix error at
    128 steps. A generator needs the two buffers; here its matrix is materialised."""
    with jax.enable_x64(True):
        made = BufferedToeplitz.build(**BLT_128)
    return Mechanism.from_jax_privacy(made, 128).normalized()


def nu_ftrl(steps: int, bands: int, nu: float) -> Mechanism:
    """Damped square root, C^-1 = first coefficients of (1 - (1 - nu) x)^1/2 (arXiv 2310.06771).

    ``nu`` in [0, 1) is about the product of rate and smallest curvature; 0 is BISR.
    """
    return _from_root(steps, bands, [1.0, number("nu", nu, 0.0, 1.0) - 1.0])


def mode_bisr(steps: int, bands: int, momentum: float, step: float) -> Mechanism:
    """Banded inverse square root of the workload of one heavy-ball mode, step = eta lambda.

    Its weights are the series of 1 / ((1 - r1 x)(1 - r2 x)), r1 and r2 the roots of
    x^2 - (1 + mu - step) x + mu. The product is real where the roots are not, and so is its root.
    Raises ValueError for an unstable mode, step not below 2 (1 + mu).
    """
    momentum = number("momentum", momentum, 0.0, 1.0)
    step = number("step", step, 0.0, 2 * (1 + momentum))
    return _from_root(steps, bands, [1.0, -(1 + momentum - step), momentum])


def _from_root(steps, bands, polynomial) -> Mechanism:
    padded = np.zeros(max(min(bands, steps), len(polynomial)))
    padded[: len(polynomial)] = polynomial
    coef = series_root(padded)[: min(bands, steps)]
    return Mechanism.from_toeplitz(steps=steps, noising_coef=coef).normalized()
