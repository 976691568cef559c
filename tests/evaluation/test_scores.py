"""Scores against tr(K Q) with the Q of each line of work, and against published root errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest
from jax_privacy.matrix_factorization import streaming_matrix, toeplitz

from momentdp.damage import workload_matrix
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.evaluation import scores
from momentdp.mechanisms.mechanism import Mechanism

STEPS = 12
EIGENVALUES = np.array([0.02, 0.3, 1.0])
MULTIPLICITIES = np.array([4.0, 1.0, 2.0])
SPECTRUM = Spectrum(EIGENVALUES, MULTIPLICITIES)
RATES = schedules.warmup_cosine(STEPS, 0.5, 4)
PEAK = np.full(STEPS, 0.5)
MOMENTUM = 0.8
C = oracles.lower_triangular(STEPS, seed=6)
M = Mechanism.from_strategy_matrix(C)
K = np.linalg.norm(C, axis=0).max() ** 2 * oracles.temporal_covariance(C)
PREFIX = np.tril(np.ones((STEPS, STEPS)))


def curvature_Q(rates, momentum):
    """sum_i lambda_i g_i' g_i from block matrices, a multiplicity at a time."""
    Q = np.zeros((STEPS, STEPS))
    for eigenvalue, multiplicity in zip(EIGENVALUES, MULTIPLICITIES, strict=True):
        g = oracles.transfer_matrices(np.array([[eigenvalue]]), rates, momentum)[:, 0, 0]
        Q += multiplicity * eigenvalue * np.outer(g, g)
    return Q


def noisecurve_Q():
    """eta^2 V' M V, V_ij = (1 - eta lambda_i)^(T-j-1) (eq. 5)."""
    V = (1 - 0.5 * EIGENVALUES[:, None]) ** (STEPS - 1 - np.arange(STEPS))
    return 0.25 * V.T @ np.diag(EIGENVALUES * MULTIPLICITIES) @ V


def table():
    """The table of the theory's "one convex problem for every evaluator", Q by Q."""
    scheduled = PREFIX * RATES
    momentum = oracles.momentum_workload(RATES, MOMENTUM)
    effective = np.minimum(RATES / (1 - MOMENTUM), 1.9)
    return {
        "mean_se": PREFIX.T @ PREFIX / STEPS,
        "lr_aware": scheduled.T @ scheduled / STEPS,
        "momentum_workload": momentum.T @ momentum / STEPS,
        "noisecurve": noisecurve_Q() / 2,
        "curvature_schedule_mu0": curvature_Q(RATES, 0.0) / 2,
        "curvature_effective_lr": curvature_Q(effective, 0.0) / 2,
        "moment_dp": curvature_Q(RATES, MOMENTUM) / 2,
    }


@pytest.mark.parametrize("name", table())
def test_score_is_tr_KQ(name):
    value = getattr(scores, name)(M, Momentum(MOMENTUM), SPECTRUM, RATES)
    assert type(value) is float
    assert value == pytest.approx(np.trace(K @ table()[name]), rel=1e-12)


def test_max_se_is_the_largest_row():
    error = np.diag(PREFIX @ K @ PREFIX.T)
    value = scores.max_se(M, Momentum(MOMENTUM), SPECTRUM, RATES)
    assert value == pytest.approx(error.max(), rel=1e-12)


KNOWS = {  # what each score looks at: nothing else may change it
    "mean_se": set(),
    "max_se": set(),
    "lr_aware": {"schedule"},
    "momentum_workload": {"schedule", "momentum"},
    "noisecurve": {"curvature", "peak"},
    "curvature_schedule_mu0": {"curvature", "schedule", "peak"},
    "curvature_effective_lr": {"curvature", "schedule", "momentum", "peak"},
    "moment_dp": {"curvature", "schedule", "momentum", "peak"},
}


@pytest.mark.parametrize("name", KNOWS)
def test_score_knows_what_the_table_says(name):
    score, knows = getattr(scores, name), KNOWS[name]
    base = score(M, Momentum(MOMENTUM), SPECTRUM, RATES)
    changed = {
        "momentum": score(M, Momentum(0.3), SPECTRUM, RATES),
        "curvature": score(M, Momentum(MOMENTUM), SPECTRUM.scaled(0.5), RATES),
        "schedule": score(M, Momentum(MOMENTUM), SPECTRUM, RATES[::-1].copy()),
    }
    for what, value in changed.items():
        assert (abs(value / base - 1) > 1e-3) == (what in knows), what


def test_effective_rate_of_other_optimizers():
    """eta / (1 - mu) for heavy ball and Nesterov alike; with optax code too."""
    plain = scores.curvature_effective_lr(M, Momentum(0.5), SPECTRUM, RATES)
    code = LinearOptimizer.from_optax(lambda rate: optax.sgd(rate, momentum=0.5, nesterov=True))
    for optimizer in (Momentum(0.5, nesterov=True), code):
        value = scores.curvature_effective_lr(M, optimizer, SPECTRUM, RATES)
        assert value == pytest.approx(plain, rel=1e-12)
    damped = Momentum(0.5, dampening=0.5)
    value = scores.curvature_effective_lr(M, damped, SPECTRUM, RATES)
    assert value == pytest.approx(np.trace(K @ curvature_Q(RATES, 0.0)) / 2, rel=1e-12)


def test_effective_rate_is_capped():
    """0.5 / (1 - 0.9) = 5 would diverge on lambda = 1: capped at 1.9, as the docstring says."""
    value = scores.curvature_effective_lr(M, Momentum(0.9), SPECTRUM, PEAK)
    expected = np.trace(K @ curvature_Q(np.full(STEPS, 1.9), 0.0)) / 2
    assert value == pytest.approx(expected, rel=1e-12)
    assert "1.9" in scores.curvature_effective_lr.__doc__


def test_scores_at_mu_0_of_a_step_that_only_momentum_allows():
    """eta lambda = 2.5 is stable for mu = 0.9; the scores that forget mu are still numbers."""
    rates = np.full(STEPS, 2.5)
    for name in ("noisecurve", "curvature_schedule_mu0"):
        value = getattr(scores, name)(M, Momentum(0.9), SPECTRUM, rates)
        expected = np.trace(K @ curvature_Q(rates, 0.0)) / 2
        assert value == pytest.approx(expected, rel=1e-12)


def test_noisecurve_is_moment_dp_at_constant_rate_and_no_momentum():
    """The identity of section 2.2, on one case to the last bits."""
    a = scores.noisecurve(M, Momentum(0.0), SPECTRUM, PEAK)
    b = scores.moment_dp(M, Momentum(0.0), SPECTRUM, PEAK)
    assert a == b == pytest.approx(np.trace(K @ noisecurve_Q()) / 2, rel=1e-13)


# Prefix workload, T = 128, after normalisation; root errors computed independently.

T = 128
ROOT = np.cumprod(np.r_[1.0, (2 * np.arange(1, T) - 1) / (2 * np.arange(1, T))])
INVERSE_ROOT = np.cumprod(np.r_[1.0, (2 * np.arange(1, T) - 3) / (2 * np.arange(1, T))])
PREFIX_VALUES = {
    "iid": ({"strategy_coef": [1.0]}, 1.0, 8.0311892021, 11.3137084990),
    "sqrt": ({"strategy_coef": ROOT}, 1.6155815872, 2.4488257132, 2.6101038648),
    "bisr": ({"noising_coef": INVERSE_ROOT[:16]}, 1.4531623487, 2.4917658286, 3.0067878811),
    "nsr": ({"strategy_coef": ROOT, "column_normalize": True}, 1, 2.3416650179, 2.4279342414),
}


@pytest.mark.parametrize("name", PREFIX_VALUES)
def test_prefix_reference_values(name):
    arguments, sensitivity, mean, largest = PREFIX_VALUES[name]
    m = Mechanism.from_toeplitz(steps=T, **arguments)
    assert m.sensitivity() == pytest.approx(sensitivity, rel=1e-9)
    for built in (m, m.normalized()):
        rest = (built, Momentum(0.9), [1.0], np.full(T, 0.1))
        assert scores.mean_se(*rest) ** 0.5 == pytest.approx(mean, rel=1e-9)
        assert scores.max_se(*rest) ** 0.5 == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize("name", ["sqrt", "bisr"])
def test_prefix_errors_are_jax_privacys(name):
    """jax-privacy gives squared errors of the unnormalised strategy."""
    arguments, sensitivity, _, _ = PREFIX_VALUES[name]
    m = Mechanism.from_toeplitz(steps=T, **arguments)
    rest = (m, Momentum(0.9), [1.0], np.full(T, 0.1))
    with jax.enable_x64(True):
        kept = np.arange(T) < (T if name == "sqrt" else 16)
        errors = toeplitz.per_query_error(noising_coef=jnp.asarray(INVERSE_ROOT * kept))
        mean, largest = (float(x) * sensitivity**2 for x in (errors.mean(), errors.max()))
    assert scores.mean_se(*rest) == pytest.approx(mean, rel=1e-9)
    assert scores.max_se(*rest) == pytest.approx(largest, rel=1e-9)


def test_workload_is_jax_privacys():
    with jax.enable_x64(True):
        theirs = streaming_matrix.momentum_sgd_matrix(0.8, jnp.asarray(RATES)).materialize(STEPS)
        theirs = np.asarray(theirs)
    np.testing.assert_allclose(workload_matrix(Momentum(0.8), RATES), theirs, rtol=1e-12)


@pytest.mark.parametrize(
    ("beta", "root", "alpha"),
    [(1.0, 2.448825713, 2.448825713), (0.1, 1.488827044, 1.527138540)],
)
def test_kalinin_andersson(beta, root, alpha):
    """chi_t = beta^(t/(n-1)), n = 128: A^1/2, and C_alpha with c_j = alpha^j r_j (root errors)."""
    chi = schedules.exponential_decay(T, 1.0, beta)
    decay = beta ** (1 / (T - 1))
    for coef, expected in ((ROOT, root), (decay ** np.arange(T) * ROOT, alpha)):
        m = Mechanism.from_toeplitz(steps=T, strategy_coef=coef)
        value = scores.lr_aware(m, Momentum(0.9), [1.0], chi)
        assert value**0.5 == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("flag", [False, True])
def test_same_bits_whatever_the_flag(flag):
    names = [*KNOWS]
    expected = [getattr(scores, name)(M, Momentum(MOMENTUM), SPECTRUM, RATES) for name in names]
    with jax.enable_x64(flag):
        found = [getattr(scores, name)(M, Momentum(MOMENTUM), SPECTRUM, RATES) for name in names]
    assert found == expected


@pytest.mark.parametrize("name", KNOWS)
def test_bad_input(name):
    score = getattr(scores, name)
    with pytest.raises(ValueError, match=r"horizon 12; build it for steps = 11"):
        score(M, Momentum(MOMENTUM), SPECTRUM, RATES[1:])
    with pytest.raises(ValueError, match=r"learning_rates: got nan at index \(0,\)"):
        score(M, Momentum(MOMENTUM), SPECTRUM, np.r_[np.nan, RATES[1:]])
    if "curvature" in KNOWS[name]:
        with pytest.raises(ValueError, match=r"eigenvalues: got -1; pass values >= 0"):
            score(M, Momentum(MOMENTUM), [-1.0], RATES)
