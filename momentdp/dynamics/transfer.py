"""The transfer vectors g_i: how the noise of step t reaches the final error in eigenmode i."""

import warnings

import jax
import numpy as np
from jaxtyping import Float

from momentdp._checks import refuse
from momentdp.dynamics import core
from momentdp.dynamics.optimizers import Momentum, check_rates, system_of
from momentdp.dynamics.spectra import Spectrum, as_spectrum


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
    spectrum, rates = as_spectrum(spectrum), check_rates(learning_rates)
    if not isinstance(optimizer, Momentum):
        system = system_of(optimizer, rates)
        check_stability(system, spectrum, rates, allow_unstable)
        with jax.enable_x64(True):
            return np.array(core.transfer(system, spectrum.eigenvalues))
    if rates.max() * (spectrum.largest + optimizer.weight_decay) > stability_limit(optimizer):
        check_stability(system_of(optimizer, rates), spectrum, rates, allow_unstable)
    constants = optimizer.momentum, optimizer.dampening, optimizer.weight_decay
    run = np.concatenate((rates, constants, spectrum.eigenvalues))
    with jax.enable_x64(True):
        return np.array(core.momentum_transfer(run, len(rates), bool(optimizer.nesterov)))


def spectral_radius(
    system: core.LinearSystem, eigenvalues: Float[np.ndarray, " modes"], step: int
) -> Float[np.ndarray, " modes"]:
    """Largest |eigenvalue| of the step matrix [[1 - d k - w, -c], [f k + h, F]] of each mode."""
    F, f, h, c, d, w = (np.asarray(part)[step] for part in system)
    matrices = np.empty((len(eigenvalues), len(f) + 1, len(f) + 1))
    matrices[:, 0, 0] = 1 - d * eigenvalues - w
    matrices[:, 0, 1:] = -c
    matrices[:, 1:, 0] = eigenvalues[:, None] * f + h
    matrices[:, 1:, 1:] = F
    return np.abs(np.linalg.eigvals(matrices)).max(axis=1)


def stability_limit(optimizer: Momentum) -> float:
    """The largest eta (lambda + weight decay) at which no mode grows: 2 (1 + mu) for heavy ball."""
    mu = optimizer.momentum
    return 2 * (1 + mu) / (1 + 2 * mu if optimizer.nesterov else 1 - optimizer.dampening)


def check_stability(
    system: core.LinearSystem, spectrum: Spectrum, rates: np.ndarray, allow_unstable: bool
) -> None:
    """Refuse a constant rate that diverges; warn where the peak of a varying one would.

    A radius of one (lambda = 0) passes: errors persist there, and nothing grows.
    """
    if allow_unstable:
        return
    radius = spectral_radius(system, spectrum.eigenvalues, int(np.argmax(rates)))
    mode = int(np.argmax(radius))
    if radius[mode] <= 1 + 1e-9:
        return
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
