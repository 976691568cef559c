"""How each member of the catalogue is made. All have sensitivity 1 (single participation).

jax-privacy makes what it has; problem P1 (``momentdp.synthesis``) the optima that it lacks. The
noise of a Toeplitz strategy grows only with time, so "max" and "last" coincide there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import banded, toeplitz
from jax_privacy.matrix_factorization import dense as jp_dense

from momentdp._checks import refuse
from momentdp.damage import quadratic_factor, workload_matrix
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.mechanisms.toeplitz import inverse_series, series_root
from momentdp.synthesis.adam import solve_adam
from momentdp.synthesis.banded import solve_banded
from momentdp.synthesis.dense import solve_dense
from momentdp.synthesis.problem import root_series
from momentdp.synthesis.toeplitz import optimize_inverse_banded


def from_solution(solution, name: str) -> Mechanism:
    """The mechanism that a P1 solver found."""
    factor = solution.factor
    if solution.structure == "dense":
        return Mechanism.from_strategy_matrix(factor, name)
    if solution.structure == "banded":
        return Mechanism.from_banded(factor, name)
    argument = "strategy_coef" if solution.structure == "toeplitz" else "noising_coef"
    made = Mechanism.from_toeplitz(steps=solution.steps, **{argument: factor}, name=name)
    return made.normalized()


def iid(steps: int, bands: int) -> Mechanism:
    """Independent noise (DP-SGD): C = I."""
    return Mechanism.from_toeplitz(steps=steps, strategy_coef=[1.0])


def dense(steps: int, bands: int) -> Mechanism:
    """Optimal MeanSE among all strategies, certified by its duality gap (jax-privacy's
    ``dense.optimize`` stops 2.9e-4 above it at T = 128)."""
    workload = workload_matrix(Momentum(0.0), np.ones(steps))
    return from_solution(solve_dense(workload.T @ workload), "dense")


def dense_jax_privacy(steps: int, bands: int) -> Mechanism:
    """jax-privacy's own ``dense.optimize``: close to ``dense``, and close matters in near ties."""
    with jax.enable_x64(True):
        strategy = np.tril(np.asarray(jp_dense.optimize(steps)))
    return Mechanism.from_strategy_matrix(strategy).normalized()


def _jax_privacy_banded(steps, bands, reduction) -> Mechanism:
    with jax.enable_x64(True):
        found = banded.optimize(steps, bands=min(bands, steps), reduction_fn=reduction)
        return Mechanism.from_jax_privacy(found, steps)


def bandmf_mean(steps: int, bands: int) -> Mechanism:
    """Column-normalised banded strategy, jax-privacy's optimiser for MeanSE (2405.15913)."""
    return _jax_privacy_banded(steps, bands, jnp.mean)


def bandmf_max(steps: int, bands: int) -> Mechanism:
    """The same for MaxSE; jax-privacy stops it after its default 100 steps."""
    return _jax_privacy_banded(steps, bands, jnp.max)


def _jax_privacy_toeplitz(steps, bands, reduction) -> Mechanism:
    with jax.enable_x64(True):
        coef = toeplitz.optimize_banded_toeplitz(steps, min(bands, steps), reduction_fn=reduction)
        return Mechanism.from_jax_privacy(coef, steps).normalized()


def toeplitz_mean(steps: int, bands: int) -> Mechanism:
    """Banded Toeplitz strategy, jax-privacy's optimiser for MeanSE."""
    return _jax_privacy_toeplitz(steps, bands, jnp.mean)


def toeplitz_max(steps: int, bands: int) -> Mechanism:
    """Banded Toeplitz strategy, jax-privacy's optimiser for MaxSE."""
    return _jax_privacy_toeplitz(steps, bands, jnp.max)


def bandinv_mean(steps: int, bands: int) -> Mechanism:
    """Toeplitz with ``bands`` coefficients in C^-1, those of C nonincreasing, for MeanSE."""
    return _bandinv(steps, bands, "mean")


def bandinv_max(steps: int, bands: int) -> Mechanism:
    """The same for MaxSE (= last)."""
    return _bandinv(steps, bands, "max")


def _bandinv(steps, bands, objective) -> Mechanism:
    solution = optimize_inverse_banded(
        steps, coefs=min(bands, steps), objective=objective, monotone=True
    )
    return from_solution(solution, "bandinv")


def bisr(steps: int, bands: int) -> Mechanism:
    """Banded inverse square root (Kalinin et al. 2026): C^-1 = first coefficients of A^-1/2."""
    coef = root_series(min(bands, steps), 0.5)
    return Mechanism.from_toeplitz(steps=steps, noising_coef=coef).normalized()


def sqrt(steps: int, bands: int) -> Mechanism:
    """The Toeplitz square root of the prefix workload, C = A^1/2."""
    coef = root_series(steps, -0.5)
    return Mechanism.from_toeplitz(steps=steps, strategy_coef=coef).normalized()


def nsr(steps: int, bands: int) -> Mechanism:
    """The normalized square root: A^1/2 with unit columns (arXiv 2509.14334)."""
    coef = root_series(steps, -0.5)
    return Mechanism.from_toeplitz(steps=steps, strategy_coef=coef, column_normalize=True)


def lr_aware_sqrt(steps: int, bands: int) -> Mechanism:
    """LR-aware MF, first reading: C = A^1/2 whatever the schedule (Kalinin & Andersson)."""
    return sqrt(steps, bands)


def lr_aware_toeplitz(steps: int, bands: int, learning_rates) -> Mechanism:
    """Second reading: the Toeplitz square root of the matrix with chi on its subdiagonals.

    For chi_t = beta^(t/(T-1)) that is C_alpha with c_j = alpha^j r_j. chi = eta / eta_0, so eta_0
    has to be positive.
    """
    chi = np.asarray(learning_rates) / learning_rates[0]
    return Mechanism.from_toeplitz(steps=steps, strategy_coef=series_root(chi)).normalized()


def lr_aware_opt(steps: int, bands: int, learning_rates) -> Mechanism:
    """Third reading: the best banded strategy for the mean error of A diag(chi)."""
    workload = workload_matrix(Momentum(0.0), learning_rates / np.max(learning_rates))
    return from_solution(
        solve_banded(workload.T @ workload, bands=min(bands, steps)), "lr_aware_opt"
    )


def momentum_dense(steps: int, bands: int, learning_rates, momentum) -> Mechanism:
    """The best strategy for the mean error of the momentum workload A_{mu,eta} (no curvature)."""
    workload = workload_matrix(Momentum(momentum), learning_rates)
    return from_solution(solve_dense(workload.T @ workload), "momentum_dense")


def momentum_bisr(steps: int, bands: int, momentum) -> Mechanism:
    """Banded inverse square root of the workload with weights 1 + mu + .. + mu^k."""
    few = min(bands, steps)  # the first coefficients of a root or an inverse need no others
    root = series_root(np.cumsum(momentum ** np.arange(few, dtype=float)))
    coef = inverse_series(root, few)
    return Mechanism.from_toeplitz(steps=steps, noising_coef=coef).normalized()


def _noisecurve_factor(learning_rates, spectrum) -> np.ndarray:
    """NoiseCurve's Q = V' M V: mu = 0 and the peak rate throughout, with the rate left out."""
    peak = float(np.max(learning_rates))
    rates = np.full(len(learning_rates), peak)
    if spectrum.largest == 0:
        raise refuse("spectrum", "all zeros", "pass a positive eigenvalue: NoiseCurve needs one")
    return quadratic_factor(Momentum(0.0), spectrum, rates, allow_unstable=True) / peak


def noisecurve(steps: int, bands: int, learning_rates, spectrum) -> Mechanism:
    """NoiseCurve's problem P1 with Q + eps tr(Q)/T I, eps = 1e-3: unique and well behaved."""
    factor = _noisecurve_factor(learning_rates, spectrum)
    return from_solution(
        solve_banded(factor=factor, bands=min(bands, steps), regularisation=1e-3), "noisecurve"
    )


def noisecurve_floor(steps: int, bands: int, learning_rates, spectrum) -> Mechanism:
    """The paper's own problem, X at least 1e-3 I, solved."""
    factor = _noisecurve_factor(learning_rates, spectrum)
    return from_solution(
        solve_banded(factor=factor, bands=min(bands, steps), floor=1e-3), "noisecurve_floor"
    )


def noisecurve_adam(steps: int, bands: int, learning_rates, spectrum) -> Mechanism:
    """The paper's procedure to the letter (B.2), at its best feasible iterate."""
    factor = _noisecurve_factor(learning_rates, spectrum)
    return from_solution(solve_adam(factor=factor, bands=min(bands, steps))[0], "noisecurve_adam")
