"""What each line of work would rank mechanisms by: one score a function, lower is better.

All are squared errors times the squared sensitivity (single participation), of one signature
(m, optimizer, spectrum, learning_rates) -> float; each looks only at what its line of work knows.
A workload's error is the variance of the same optimizer at zero curvature, so a single sweep
serves them all. Scores at mu = 0 are evaluated even where plain SGD would diverge: heavy ball
allows a larger step, and only the optimizer in use has to be stable.
"""

import numpy as np
from jaxtyping import Float

from momentdp.damage import damage, error_variances
from momentdp.dynamics.optimizers import Momentum, check_rates, system_of
from momentdp.dynamics.spectra import as_spectrum

STABLE_EL = 1.9  # cap on eta lambda_max for the effective rate: plain SGD diverges from 2 on


def _workload_errors(m, optimizer, learning_rates) -> Float[np.ndarray, " steps"]:
    variances = error_variances(m, system_of(optimizer, learning_rates), np.zeros(1))[:, 0]
    return m.sensitivity() ** 2 * variances


def mean_se(m, optimizer, spectrum, learning_rates) -> float:
    """Mean squared error of the prefix sums: knows the workload only (static MF)."""
    ones = np.ones_like(check_rates(learning_rates))
    return float(_workload_errors(m, Momentum(0.0), ones).mean())


def max_se(m, optimizer, spectrum, learning_rates) -> float:
    """Largest squared error of the prefix sums."""
    ones = np.ones_like(check_rates(learning_rates))
    return float(_workload_errors(m, Momentum(0.0), ones).max())


def lr_aware(m, optimizer, spectrum, learning_rates) -> float:
    """Mean squared error of the workload A diag(eta) (Kalinin & Andersson): + schedule."""
    return float(_workload_errors(m, Momentum(0.0), learning_rates).mean())


def momentum_workload(m, optimizer, spectrum, learning_rates) -> float:
    """Mean squared error of A_{mu,eta}, the optimizer at zero curvature: + schedule, momentum."""
    return float(_workload_errors(m, optimizer, learning_rates).mean())


def noisecurve(m, optimizer, spectrum, learning_rates) -> float:
    """NoiseCurve's criterion (paper eq. 5): mu = 0 and the peak rate throughout: + curvature."""
    rates = check_rates(learning_rates)
    peak = np.full(len(rates), rates.max())
    return damage(m, Momentum(0.0), spectrum, peak, allow_unstable=True)


def curvature_schedule_mu0(m, optimizer, spectrum, learning_rates) -> float:
    """D_dyn with the momentum forced to zero: + curvature, schedule."""
    return damage(m, Momentum(0.0), spectrum, learning_rates, allow_unstable=True)


def curvature_effective_lr(m, optimizer, spectrum, learning_rates) -> float:
    """D_dyn at zero momentum and the effective rate eta / (1 - mu), capped at 1.9 / lambda_max."""
    system = system_of(optimizer, learning_rates)
    F, f, c, d = (np.asarray(part) for part in (system.F, system.f, system.c, system.d))
    settled = np.linalg.solve(np.eye(f.shape[1]) - F, f[..., None])[..., 0]
    effective = d + (c * settled).sum(axis=1)
    largest = as_spectrum(spectrum).largest
    cap = STABLE_EL / largest if largest > 0 else np.inf
    return damage(m, Momentum(0.0), spectrum, np.minimum(effective, cap))


def moment_dp(m, optimizer, spectrum, learning_rates) -> float:
    """D_dyn itself (paper eq. 3): workload, schedule, curvature and the optimizer's state."""
    return damage(m, optimizer, spectrum, learning_rates)
