"""Transfer vectors against block matrices, jax.vjp of the scan, the paths themselves, and roots."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from momentdp.dynamics import core, literal, schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.dynamics.transfer import spectral_radius, stability_limit, transfer

STEPS = 13
EIGENVALUES = np.array([0.0, 0.05, 0.4, 1.0])
VARIANTS = {
    "plain SGD": {"momentum": 0.0},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.8, "dampening": 0.8},
    "weight decay": {"momentum": 0.9, "weight_decay": 0.07},
    "Nesterov, weight decay": {"momentum": 0.7, "nesterov": True, "weight_decay": 0.2},
    "dampening, weight decay": {"momentum": 0.7, "dampening": 0.3, "weight_decay": 0.2},
}
RATES = {
    "constant": np.full(STEPS, 0.3),
    "cosine": schedules.cosine(STEPS, 0.4),
    "warmup": schedules.warmup_constant(STEPS, 0.3, 5),
    "random": np.random.default_rng(1).uniform(0.01, 0.5, STEPS),
    "with zeros": np.where(np.arange(STEPS) % 3 == 1, 0.0, 0.2),
}


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_block_matrices(variant, rates):
    """Proposition 1: G_t = U diag(g_i[t]) U' in the original, rotated coordinates."""
    H, U = oracles.rotated(EIGENVALUES)
    G = oracles.transfer_matrices(H, RATES[rates], **VARIANTS[variant])
    g = transfer(Momentum(**VARIANTS[variant]), EIGENVALUES, RATES[rates])
    assert g.dtype == np.float64 and g.shape == (4, STEPS)
    np.testing.assert_allclose(np.einsum("ai,it,bi->tab", U, g, U), G, atol=1e-13)


@pytest.mark.parametrize("variant", VARIANTS)
def test_optimizer_written_out(variant):
    """The recurrence itself, one unit impulse of noise at a time."""
    settings = dict(VARIANTS[variant])
    J = np.diag(EIGENVALUES + settings.pop("weight_decay", 0.0))
    impulses = np.zeros((STEPS, STEPS, 4))
    impulses[np.arange(STEPS), np.arange(STEPS)] = 1.0
    paths = oracles.run(J, RATES["random"], impulses, np.zeros(4), **settings)
    g = transfer(Momentum(**VARIANTS[variant]), EIGENVALUES, RATES["random"])
    np.testing.assert_allclose(g, paths[-1].T, atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.95])
def test_vjp_of_the_scan(momentum):
    """The adjoint sweep is reverse-mode differentiation of eq. 2."""
    H, U = oracles.rotated(EIGENVALUES)
    rates = RATES["cosine"]
    with jax.enable_x64(True):
        Z = jnp.zeros((STEPS, 4))
        _, pullback = jax.vjp(
            lambda Z: oracles.final_error_by_scan(H, rates, momentum, jnp.ones(4), Z), Z
        )
        rows = np.stack([np.asarray(pullback(jnp.asarray(u))[0]) for u in U.T])
    g = transfer(Momentum(momentum), EIGENVALUES, rates)
    np.testing.assert_allclose(rows, g[:, :, None] * U.T[:, None, :], atol=1e-14)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("eta_lambda", [0.01, 0.3, 1.0, 1.9])
def test_closed_form_by_roots(momentum, eta_lambda):
    """Real, complex and negative roots; 200 steps."""
    g = transfer(Momentum(momentum), [eta_lambda / 0.2], np.full(200, 0.2))
    expected = oracles.heavy_ball_closed_form(eta_lambda / 0.2, 0.2, momentum, 200)
    np.testing.assert_allclose(g[0], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("momentum", [0.25, 0.81])
@pytest.mark.parametrize("sign", [-1, 1])
def test_double_root_is_the_limit(momentum, sign):
    """At eta lambda = (1 -+ sqrt mu)^2 the roots meet at +-sqrt mu: g_j = -eta n r^(n-1)."""
    eigenvalue = (1 + sign * np.sqrt(momentum)) ** 2 / 0.5
    g = transfer(Momentum(momentum), [eigenvalue, eigenvalue * (1 + 1e-9)], np.full(60, 0.5))
    expected = oracles.heavy_ball_closed_form(eigenvalue, 0.5, momentum, 60)
    np.testing.assert_allclose(g[0], expected, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(g[1], expected, rtol=1e-4, atol=1e-7)


def test_zero_curvature_keeps_the_noise():
    """lambda = 0: g_j = -eta (1 - mu^n) / (1 - mu), and the sign is kept."""
    n = 20 - np.arange(20)
    g = transfer(Momentum(0.9), [0.0], np.full(20, 0.1))
    np.testing.assert_allclose(g[0], -0.1 * (1 - 0.9**n) / (1 - 0.9), rtol=1e-13)


def test_no_momentum_is_noisecurve_eq_5():
    """g_i = -eta (1 - eta lambda_i)^(T-j-1)."""
    powers = STEPS - 1 - np.arange(STEPS)
    g = transfer(Momentum(0.0), EIGENVALUES, np.full(STEPS, 0.3))
    np.testing.assert_allclose(g, -0.3 * (1 - 0.3 * EIGENVALUES[:, None]) ** powers, rtol=1e-13)


def test_multiplicities_do_not_change_the_modes():
    spectrum = Spectrum(EIGENVALUES, [5.0, 1.0, 2.0, 1.0])
    rates = RATES["cosine"]
    optimizer = Momentum(0.9)
    np.testing.assert_array_equal(
        transfer(optimizer, spectrum, rates), transfer(optimizer, EIGENVALUES, rates)
    )


@pytest.mark.parametrize("flag", [False, True])
def test_float64_whatever_the_flag(flag):
    with jax.enable_x64(flag):
        g = transfer(Momentum(0.9), EIGENVALUES, RATES["cosine"])
        assert jax.config.jax_enable_x64 == flag
    assert type(g) is np.ndarray and g.dtype == np.float64
    np.testing.assert_array_equal(g, transfer(Momentum(0.9), EIGENVALUES, RATES["cosine"]))


# Stability: heavy ball iff 0 < eta lambda < 2 (1 + mu), Nesterov by the roots of its own quadratic
# x^2 - (1 + mu)(1 - k) x + mu (1 - k), k = eta lambda, which leaves the disc at (2 + 2 mu)/(1 + 2 mu).
EDGES = [
    (Momentum(0.0), 2.0),
    (Momentum(0.9), 3.8),
    (Momentum(0.9, nesterov=True), 3.8 / 2.8),
    (Momentum(0.5, dampening=0.5), 2 * 1.5 / 0.5),
]


@pytest.mark.parametrize(("optimizer", "edge"), EDGES)
def test_unstable_constant_rate_is_refused(optimizer, edge):
    rates = np.full(10, 0.5)
    transfer(optimizer, [0.0, edge * 0.999 / 0.5], rates)
    with pytest.raises(ValueError, match=r"learning_rates: got peak 0\.5 on eigenvalue .* radius"):
        transfer(optimizer, [0.0, edge * 1.001 / 0.5], rates)
    g = transfer(optimizer, [0.0, edge * 1.001 / 0.5], rates, allow_unstable=True)
    assert np.all(np.isfinite(g))


def test_unstable_names_the_mend():
    with pytest.raises(ValueError, match=r"lower the rate.*allow_unstable=True"):
        transfer(Momentum(0.5), [10.0], np.full(5, 0.5))


def test_varying_rate_beyond_the_edge_only_warns():
    """A step above 2 / lambda for a while is exact, and normal during warmup."""
    rates = np.array([0.1, 0.2, 2.5, 0.2, 0.1])
    with pytest.warns(UserWarning, match=r"learning_rates: peak 2\.5 on eigenvalue 1 is unstable"):
        g = transfer(Momentum(0.0), [1.0], rates)
    np.testing.assert_allclose(g[0, 1], -0.2 * (1 - 2.5) * (1 - 0.2) * (1 - 0.1), rtol=1e-14)


def test_zero_eigenvalue_passes_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transfer(Momentum(0.99), [0.0], np.full(5, 1e3))


def test_scaling_law():
    """eta -> c eta, H -> H / c: g -> c g (so that D -> D / c with sigma -> sigma / c)."""
    rates = RATES["random"]
    g = transfer(Momentum(0.9), EIGENVALUES, rates)
    np.testing.assert_allclose(
        transfer(Momentum(0.9), EIGENVALUES / 7, 7 * rates), 7 * g, rtol=1e-12
    )
    assert np.abs(transfer(Momentum(0.9), EIGENVALUES, 2 * rates) / g - 2).max() > 0.1


@pytest.mark.parametrize("options", [{}, {"nesterov": True}, {"dampening": 0.3}])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_stability_limit_is_where_the_step_matrix_starts_to_grow(momentum, options):
    optimizer = Momentum(momentum, weight_decay=0.2, **options)
    limit = stability_limit(optimizer)
    for factor, grows in ((0.999, False), (1.001, True)):
        system = optimizer.system(np.array([factor * limit / 1.2]))  # lambda + decay = 1.2
        assert (spectral_radius(system, np.array([1.0]), 0)[0] > 1) == grows


def test_the_literal_operator_is_its_own_path_and_the_transfer():
    H, U = oracles.rotated(EIGENVALUES)
    rates, d = schedules.cosine(5, 0.4), len(EIGENVALUES)
    operator = literal.transfer_operator(H, 0.9, rates)
    noise = np.random.default_rng(0).normal(size=(5, d))
    path = literal.final_error(H, 0.9, rates, noise)
    np.testing.assert_allclose(operator @ noise.ravel(), path, rtol=1e-12, atol=1e-15)
    g = transfer(Momentum(0.9), Spectrum(EIGENVALUES), rates)
    blocks = np.hstack([U @ np.diag(column) @ U.T for column in g.T])
    np.testing.assert_allclose(operator, blocks, rtol=1e-10, atol=1e-12)


def test_dense_damage_by_loops():
    rng = np.random.default_rng(0)
    g, weights, noising = rng.normal(size=(2, 4)), rng.uniform(size=2), rng.normal(size=(4, 4))
    expected = 0.0
    for mode in range(2):
        for column in range(4):
            expected += 0.5 * weights[mode] * sum(g[mode] * noising[:, column]) ** 2
    assert float(core.dense_damage(g, weights, noising)) == pytest.approx(expected, rel=1e-5)
