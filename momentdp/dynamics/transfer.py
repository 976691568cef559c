"""The transfer vectors g_i: how the noise of step t reaches the final error in eigenmode i."""

import warnings

import jax
import numpy as np
from jaxtyping import Float

from momentdp._checks import refuse
from momentdp.dynamics import core
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum, as_spectrum

MOST_KEPT, LARGEST_KEPT = 32, 2**18  # transfers kept, and their entries: 64 MiB at most
_kept: dict[tuple, np.ndarray] = {}


def transfer(
    optimizer, spectrum, learning_rates, *, allow_unstable: bool = False
) -> Float[np.ndarray, "modes steps"]:
    """d e_T / d z_t in each eigenmode, sign kept (paper A.1; G in the eigenbasis).

    Args:
        optimizer: Momentum or LinearOptimizer.
        spectrum: Spectrum, or (modes,) eigenvalues of the curvature that drives the dynamics.
        learning_rates: (steps,) in parameter / gradient units.
        allow_unstable: evaluate a constant rate that diverges instead of refusing it.

    Raises:
        ValueError: bad input, or a mode that is unstable at a constant rate.
    """
    spectrum = as_spectrum(spectrum)
    key = _key(optimizer, spectrum, learning_rates)
    if key in _kept:
        return _kept[key].copy()
    system = optimizer.system(learning_rates)
    is_stable = check_stability(system, spectrum, np.asarray(learning_rates), allow_unstable)
    with jax.enable_x64(True):
        g = np.array(core.transfer(system, spectrum.eigenvalues))
    if key and is_stable and g.size <= LARGEST_KEPT:
        while len(_kept) >= MOST_KEPT:
            _kept.pop(next(iter(_kept)), None)
        _kept[key] = g.copy()
    return g


def _key(optimizer, spectrum: Spectrum, rates) -> tuple | None:
    """What the transfer depends on; None where it is not kept.

    A pool of mechanisms is evaluated on one run, so the last runs' transfers are kept; only those
    that neither warned nor were refused, so that a warning is given each time.
    """
    if type(optimizer) is Momentum and type(rates) is np.ndarray and rates.dtype == np.float64:
        return optimizer, rates.shape, rates.tobytes(), spectrum.eigenvalues.tobytes()
    return None


def spectral_radius(
    system: core.LinearSystem, eigenvalues: Float[np.ndarray, " modes"], step: int
) -> Float[np.ndarray, " modes"]:
    """Largest |eigenvalue| of the step matrix [[1 - d k - w, -c], [f k + h, F]] of each mode."""
    F, f, h, c, d, w = (np.asarray(part)[step] for part in system)
    if len(f) == 1:  # heavy ball and its kin: the roots of x^2 - trace x + determinant
        error, buffer = 1 - d * eigenvalues - w, eigenvalues * f + h
        half_trace, determinant = (error + F[0]) / 2, error * F[0] + c * buffer
        square = half_trace**2 - determinant
        real = np.abs(half_trace) + np.sqrt(np.maximum(square, 0.0))
        return np.where(square >= 0, real, np.sqrt(np.maximum(determinant, 0.0)))
    matrices = np.empty((len(eigenvalues), len(f) + 1, len(f) + 1))
    matrices[:, 0, 0] = 1 - d * eigenvalues - w
    matrices[:, 0, 1:] = -c
    matrices[:, 1:, 0] = eigenvalues[:, None] * f + h
    matrices[:, 1:, 1:] = F
    return np.abs(np.linalg.eigvals(matrices)).max(axis=1)


def check_stability(
    system: core.LinearSystem, spectrum: Spectrum, rates: np.ndarray, allow_unstable: bool
) -> bool:
    """Refuse a constant rate that diverges; warn where the peak of a varying one would.

    True if neither was needed.

    A radius of one (lambda = 0) passes: errors persist there, and nothing grows.
    """
    if allow_unstable:
        return False
    radius = spectral_radius(system, spectrum.eigenvalues, int(np.argmax(rates)))
    mode = int(np.argmax(radius))
    if radius[mode] <= 1 + 1e-9:
        return True
    found = f"peak {rates.max():g} on eigenvalue {spectrum.eigenvalues[mode]:g}"
    if np.ptp(rates) == 0:
        raise refuse(
            "learning_rates",
            f"{found} (spectral radius {radius[mode]:.4f})",
            "lower the rate until the radius is at most 1, or pass allow_unstable=True",
        )
    warnings.warn(
        f"learning_rates: {found} is unstable while it lasts (spectral radius {radius[mode]:.4f})",
        stacklevel=3,
    )
    return False
