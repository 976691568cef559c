"""Damage: the expected loss that privacy noise causes through the optimizer (paper eq. 1 and 3).

D = (sigma^2 / 2) sum_i lambda_i |C^-T g_i|^2, one structured solve a mode, is the whole of
MOMENT-DP on a quadratic. Every evaluator here is tr(K Q) for its own Q; ``quadratic_factor`` gives
the factor F with Q = F F' that the solvers minimise over.
"""

import jax
import numpy as np
from jaxtyping import Float

from momentdp._checks import finite_array, number, refuse
from momentdp.dynamics import core
from momentdp.dynamics.optimizers import check_rates, system_of
from momentdp.dynamics.spectra import as_spectrum
from momentdp.dynamics.transfer import check_stability, transfer
from momentdp.mechanisms.mechanism import check_mechanism

Modes = Float[np.ndarray, " modes"]
_COLUMNS = 256  # noise columns carried at once by the trajectory sweep: bounds its memory


def loss_weights(spectrum, loss_curvature=None) -> Modes:
    """What multiplies g_i K g_i': multiplicity times the loss's curvature along mode i.

    ``loss_curvature`` (modes,) is (U' H U)_ii where the optimizer sees another Jacobian
    J = U diag(j) U' than the loss has Hessian H (clipping); left out, H = J.
    """
    spectrum = as_spectrum(spectrum)
    curvature = spectrum.eigenvalues
    if loss_curvature is not None:
        curvature = finite_array("loss_curvature", loss_curvature, 1)
        if curvature.shape != spectrum.eigenvalues.shape or curvature.min() < 0:
            raise refuse(
                "loss_curvature",
                f"shape {curvature.shape}, smallest {curvature.min():.3g}",
                f"pass {len(spectrum.eigenvalues)} values >= 0, one a mode",
            )
    return spectrum.multiplicities * curvature


def damage(
    m,
    optimizer,
    spectrum,
    learning_rates,
    *,
    noise_multiplier: float = 1.0,
    min_sep: int | None = None,
    max_participations: int = 1,
    loss_curvature=None,
    allow_unstable: bool = False,
) -> float:
    """D_dyn: the expected final loss that privacy noise alone causes (Proposition 1), exact.

    Args:
        m: Mechanism of horizon ``steps``; its sensitivity under the participation given enters
            once, so scaling C changes nothing.
        optimizer: Momentum or LinearOptimizer.
        spectrum: Spectrum or (modes,) eigenvalues.
        learning_rates: (steps,).
        noise_multiplier: sigma; per-coordinate noise is sigma x sensitivity at unit clip norm.
        min_sep, max_participations: the participation pattern.
        loss_curvature: see ``loss_weights``.
        allow_unstable: evaluate a diverging constant rate instead of refusing it.

    Returns:
        Loss, in units of spectrum x parameter^2.

    Raises:
        ValueError: bad input, horizons that do not match, or an unstable constant rate.
    """
    sigma = number("noise_multiplier", noise_multiplier, 0.0)
    weights = loss_weights(spectrum, loss_curvature)
    g = transfer(optimizer, spectrum, learning_rates, allow_unstable=allow_unstable)
    check_mechanism("m", m).require_steps(g.shape[1])
    scale = sigma * m.sensitivity(min_sep, max_participations)
    value = 0.5 * scale**2 * float(weights @ transferred_variance(m, g))
    if not np.isfinite(value):
        raise refuse(
            f"mechanism {m.name!r}", "a C^-1 that overflows", "pass a better conditioned C"
        )
    return value


def transferred_variance(m, g: Float[np.ndarray, "rows steps"]) -> Float[np.ndarray, " rows"]:
    """g_i K g_i' = |C^-T g_i|^2 for each row."""
    half = m.structure.solve_transposed(g)
    return np.square(half).sum(axis=1)


def damage_curve(
    m,
    optimizer,
    spectrum,
    learning_rates,
    *,
    noise_multiplier: float = 1.0,
    min_sep: int | None = None,
    max_participations: int = 1,
    loss_curvature=None,
    allow_unstable: bool = False,
) -> Float[np.ndarray, " steps"]:
    """D_dyn(t), t = 1..steps: the loss that noise has caused after each step (paper A.3).

    The arguments and errors are those of ``damage``.
    """
    sigma = number("noise_multiplier", noise_multiplier, 0.0)
    spectrum, rates = as_spectrum(spectrum), check_rates(learning_rates)
    weights = loss_weights(spectrum, loss_curvature)
    system = system_of(optimizer, rates)
    check_stability(system, spectrum, rates, allow_unstable)
    variances = error_variances(m, system, spectrum.eigenvalues)
    scale = sigma * m.sensitivity(min_sep, max_participations)
    curve = 0.5 * scale**2 * (variances @ weights)
    if not np.isfinite(curve).all():
        raise refuse("damage", "an overflow", "lower the rates, or pass a better conditioned C")
    return curve


def error_variances(m, system, eigenvalues: Modes) -> Float[np.ndarray, "steps modes"]:
    """Variance of e_t, t = 1..steps, in each mode for noise z = C^-1 w at unit multiplier.

    Exact for every structure in O(modes steps^2) time and O(modes steps) memory: the columns of
    C^-1 run through the optimizer a block at a time. At eigenvalue 0 these are the squared errors
    of a matrix-factorization workload: of the prefix sums for momentum 0 and rate 1.
    """
    steps = len(system.d)
    check_mechanism("m", m).require_steps(steps)
    total = np.zeros((steps, len(eigenvalues)))
    zero = np.zeros(len(eigenvalues))
    for first in range(0, steps, _COLUMNS):
        columns = np.arange(first, min(first + _COLUMNS, steps))
        unit = np.zeros((len(columns), steps))
        unit[columns - first, columns] = 1.0
        noise = m.structure.solve(unit).T
        with jax.enable_x64(True):
            total += np.square(core.response(system, eigenvalues, noise, zero, zero)).sum(axis=1)
    return total


def workload_matrix(optimizer, learning_rates) -> Float[np.ndarray, "steps steps"]:
    """A_{mu,eta}: row t is the response of -e_{t+1} to the noise at zero curvature.

    Prefix sums for momentum 0 and rate 1; A diag(eta) for momentum 0 and rates eta.
    """
    rates = check_rates(learning_rates)
    zero = np.zeros(1)
    with jax.enable_x64(True):
        system = system_of(optimizer, rates)
        return -np.asarray(core.response(system, zero, np.eye(len(rates)), zero, zero))[..., 0]


def trajectory_damage(m, optimizer, spectrum, learning_rates, *, weights=None, **options) -> float:
    """D_traj = sum_t w_t D_dyn(t) (paper A.3); weights (steps,) or None for uniform 1/T.

    The other arguments and errors are those of ``damage_curve``.
    """
    curve = damage_curve(m, optimizer, spectrum, learning_rates, **options)
    if weights is None:
        return float(curve.mean())
    weights = finite_array("weights", weights, 1)
    if weights.shape != curve.shape or weights.min() < 0:
        raise refuse("weights", f"shape {weights.shape}", f"pass {len(curve)} values >= 0")
    return float(weights @ curve)


def quadratic_factor(
    optimizer, spectrum, learning_rates, *, loss_curvature=None, allow_unstable: bool = False
) -> Float[np.ndarray, "steps modes"]:
    """F with Q = F F' and D_dyn = (sigma^2 / 2) tr(K Q): column i is sqrt(weight_i) g_i."""
    weights = loss_weights(spectrum, loss_curvature)
    g = transfer(optimizer, spectrum, learning_rates, allow_unstable=allow_unstable)
    if not np.abs(g).max() < 1e100:  # a passing instability that is none: nothing can be solved
        peak = f"a peak of {np.max(learning_rates):g}, at which the noise grows without bound"
        raise refuse("learning_rates", peak, "lower the peak: the run diverges")
    return (np.sqrt(weights)[:, None] * g).T


def trajectory_gram(optimizer, spectrum, learning_rates) -> Float[np.ndarray, "steps steps"]:
    """Q with mean_t D_dyn(t) = (sigma^2 / 2) tr(K Q) (paper A.3, uniform weights)."""
    spectrum, rates = as_spectrum(spectrum), check_rates(learning_rates)
    system = system_of(optimizer, rates)
    total = np.zeros((len(rates), len(rates)))
    zero, unit = np.zeros(1), np.eye(len(rates))
    for eigenvalue, weight in zip(spectrum.eigenvalues, loss_weights(spectrum), strict=True):
        with jax.enable_x64(True):
            mode = np.asarray(core.response(system, np.array([eigenvalue]), unit, zero, zero))
        total += weight / len(rates) * mode[..., 0].T @ mode[..., 0]
    return total


def expected_loss(
    m,
    optimizer,
    spectrum,
    learning_rates,
    *,
    initial_error,
    noise_multiplier: float = 1.0,
    optimum=None,
    **options,
) -> float:
    """Loss of the noise-free path plus damage, above the optimum's loss.

    Args:
        initial_error: (modes,) e_0 in the eigenbasis, root-mean-square over a mode's multiplicity.
        optimum: (modes,) theta* in the eigenbasis; needed with weight decay, which pulls to zero.
        options: those of ``damage``.
    """
    spectrum, rates = as_spectrum(spectrum), check_rates(learning_rates)
    start = finite_array("initial_error", initial_error, 1)
    system = system_of(optimizer, rates)
    if optimum is None and (np.any(system.h) or np.any(system.w)):
        raise refuse("optimum", None, "pass theta* (modes,), which weight decay pulls from")
    target = np.zeros_like(start) if optimum is None else finite_array("optimum", optimum, 1)
    if start.shape != spectrum.eigenvalues.shape or target.shape != start.shape:
        raise refuse("initial_error", f"shape {start.shape}", "pass one value a mode")
    with jax.enable_x64(True):
        quiet = np.zeros((len(rates), 1))
        path = core.response(system, spectrum.eigenvalues, quiet, start, target)
        final = np.asarray(path)[-1, 0]
    weights = loss_weights(spectrum, options.get("loss_curvature"))
    noise = damage(m, optimizer, spectrum, rates, noise_multiplier=noise_multiplier, **options)
    return float(0.5 * weights @ final**2) + noise
