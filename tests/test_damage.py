"""Damage against every independent way to compute it, closed forms, and its refusals."""

import importlib
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from momentdp.damage import damage, damage_curve, expected_loss, trajectory_damage
from momentdp.dynamics import core, schedules
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.mechanisms.mechanism import Mechanism

# `momentdp.damage` is the function where the package exports it; this is its module.
engine = importlib.import_module("momentdp.damage")
STEPS = 11
EIGENVALUES = np.array([0.0, 0.05, 0.4, 1.0])
RATES = schedules.warmup_cosine(STEPS, 0.4, 3)
C = oracles.lower_triangular(STEPS, seed=7)
DENSE = Mechanism.from_strategy_matrix(C)
WHITE = Mechanism.from_toeplitz(steps=STEPS, strategy_coef=[1.0])
SENSITIVITY = np.linalg.norm(C, axis=0).max()
K = SENSITIVITY**2 * oracles.temporal_covariance(C)
VARIANTS = {
    "plain SGD": {"momentum": 0.0},
    "heavy ball": {"momentum": 0.9},
    "Nesterov": {"momentum": 0.9, "nesterov": True},
    "dampening": {"momentum": 0.8, "dampening": 0.8},
    "weight decay": {"momentum": 0.9, "weight_decay": 0.07},
}


@pytest.fixture(params=VARIANTS)
def variant(request):
    return VARIANTS[request.param]


def test_literal_formula(variant):
    """Proposition 1 with G (4 x 44) and K (x) I (44 x 44) in rotated coordinates."""
    H, _ = oracles.rotated(EIGENVALUES)
    G = oracles.transfer_matrices(H, RATES, **variant)
    value = damage(DENSE, Momentum(**variant), EIGENVALUES, RATES, noise_multiplier=1.7)
    assert type(value) is float
    assert value == pytest.approx(oracles.literal_damage(H, G, K, 1.7), rel=1e-12)


def test_covariance_propagation(variant):
    """Independent noise: S+ = A S A' + sigma^2 B B', at every step."""
    H, _ = oracles.rotated(EIGENVALUES)
    losses = oracles.propagated_damage(H, H, RATES, sigma=0.6, **variant)
    options = {"noise_multiplier": 0.6}
    optimizer = Momentum(**variant)
    assert damage(WHITE, optimizer, EIGENVALUES, RATES, **options) == pytest.approx(losses[-1])
    curve = damage_curve(WHITE, optimizer, EIGENVALUES, RATES, **options)
    np.testing.assert_allclose(curve, losses, rtol=1e-12)
    uniform = trajectory_damage(WHITE, optimizer, EIGENVALUES, RATES, **options)
    assert uniform == pytest.approx(losses.mean(), rel=1e-12)


def test_trajectory_by_literal_G_at_each_step(variant):
    """D_traj = sum_t w_t tr(H G^(t) (K (x) I) G^(t)') / 2, correlated noise (A.3)."""
    H, _ = oracles.rotated(EIGENVALUES)
    literal = [
        oracles.literal_damage(H, oracles.transfer_matrices(H, RATES, upto=t, **variant), K)
        for t in range(1, STEPS + 1)
    ]
    arguments = (DENSE, Momentum(**variant), EIGENVALUES, RATES)
    np.testing.assert_allclose(damage_curve(*arguments), literal, rtol=1e-12)
    weights = np.random.default_rng(0).uniform(size=STEPS)
    value = trajectory_damage(*arguments, weights=weights)
    assert value == pytest.approx(weights @ literal, rel=1e-12)
    last = np.eye(STEPS)[-1]
    assert trajectory_damage(*arguments, weights=last) == pytest.approx(damage(*arguments))


def test_more_columns_than_one_block(monkeypatch):
    """The sweep over columns of C^-1 in blocks gives the same as one block."""
    arguments = (DENSE, Momentum(0.9), EIGENVALUES, RATES)
    whole = damage_curve(*arguments)
    monkeypatch.setattr(engine, "_COLUMNS", 4)
    np.testing.assert_allclose(damage_curve(*arguments), whole, rtol=1e-13)


def test_vjp_of_the_scan():
    """H^1/2 e_T pulled back to the noise by jax: rows of H^1/2 G."""
    H, U = oracles.rotated(EIGENVALUES)
    with jax.enable_x64(True):
        _, pullback = jax.vjp(
            lambda Z: oracles.final_error_by_scan(H, RATES, 0.9, jnp.zeros(4), Z),
            jnp.zeros((STEPS, 4)),
        )
        rows = [np.asarray(pullback(jnp.asarray(row))[0]) for row in (U * EIGENVALUES**0.5).T]
    expected = 0.5 * sum(np.trace(row.T @ K @ row) for row in rows)
    value = damage(DENSE, Momentum(0.9), EIGENVALUES, RATES)
    assert value == pytest.approx(expected, rel=1e-12)


def test_monte_carlo(variant):
    """60,000 runs of the recurrence on correlated noise in rotated coordinates, start to end."""
    settings = dict(variant)
    decay = settings.pop("weight_decay", 0.0)
    H, _ = oracles.rotated(EIGENVALUES[1:])
    n, rng = 60_000, np.random.default_rng(11)
    white = rng.normal(size=(n, STEPS, 3))
    noise = SENSITIVITY * np.einsum("ts,nsd->ntd", np.linalg.inv(C), white)
    final = oracles.run(H + decay * np.eye(3), RATES, noise, np.zeros(3), **settings)[-1]
    losses = 0.5 * np.einsum("na,ab,nb->n", final, H, final)
    error = losses.std() / np.sqrt(n)
    value = damage(DENSE, Momentum(**variant), EIGENVALUES[1:], RATES)
    assert abs(value - losses.mean()) < 4 * error
    assert error < 0.01 * value


def test_multiplicities_are_repeated_eigenvalues():
    spectrum = Spectrum([0.1, 1.0], [3.0, 2.0])
    repeated = [0.1, 0.1, 0.1, 1.0, 1.0]
    for evaluate in (damage, trajectory_damage):
        one = evaluate(DENSE, Momentum(0.9), spectrum, RATES)
        assert one == pytest.approx(evaluate(DENSE, Momentum(0.9), repeated, RATES), rel=1e-13)
    factor = engine.quadratic_factor(Momentum(0.9), spectrum, RATES)
    wide = engine.quadratic_factor(Momentum(0.9), repeated, RATES)
    np.testing.assert_allclose(factor @ factor.T, wide @ wide.T, rtol=1e-12)


def test_two_curvatures():
    """J drives, H weighs, in different bases: only (U' H U)_ii enters."""
    J, U = oracles.rotated([0.1, 0.5, 1.0], seed=1)
    H, _ = oracles.rotated([0.3, 2.0, 4.0], seed=2)
    assert np.abs(J @ H - H @ J).max() > 0.1
    G = oracles.transfer_matrices(J, RATES, 0.9)
    expected = oracles.literal_damage(H, G, K)
    options = {"loss_curvature": np.diag(U.T @ H @ U)}
    arguments = (DENSE, Momentum(0.9), [0.1, 0.5, 1.0], RATES)
    assert damage(*arguments, **options) == pytest.approx(expected, rel=1e-12)
    losses = oracles.propagated_damage(H, J, RATES, 0.9)
    white = damage_curve(WHITE, *arguments[1:], **options)
    np.testing.assert_allclose(white, losses, rtol=1e-12)
    factor = engine.quadratic_factor(*arguments[1:], **options)
    assert 0.5 * np.trace(K @ factor @ factor.T) == pytest.approx(expected, rel=1e-12)


def test_quadratic_factor_is_Q():
    """D = sigma^2 / 2 tr(K Q), Q = sum_i lambda_i g_i' g_i."""
    Q = np.zeros((STEPS, STEPS))
    for eigenvalue in EIGENVALUES:
        G = oracles.transfer_matrices(np.array([[eigenvalue]]), RATES, 0.9)[:, 0, 0]
        Q += eigenvalue * np.outer(G, G)
    F = engine.quadratic_factor(Momentum(0.9), EIGENVALUES, RATES)
    assert F.shape == (STEPS, 4)
    np.testing.assert_allclose(F @ F.T, Q, atol=1e-14)


def test_linear_optimizer_is_the_momentum_that_it_is():
    optimizer = LinearOptimizer.from_optax(lambda rate: optax.sgd(rate, momentum=0.9))
    for evaluate in (damage, trajectory_damage):
        assert evaluate(DENSE, optimizer, EIGENVALUES, RATES) == pytest.approx(
            evaluate(DENSE, Momentum(0.9), EIGENVALUES, RATES), rel=1e-12
        )


# Closed forms and laws


def test_stationary_limit_of_independent_noise():
    """(sigma^2 / 2) eta (1 + mu) / ((1 - mu)(2 (1 + mu) - eta lambda)) a mode; 0.8142857143."""
    steps = 4000
    m = Mechanism.from_toeplitz(steps=steps, strategy_coef=[1.0])
    value = damage(m, Momentum(0.9), [1.0], np.full(steps, 0.3))
    assert value == pytest.approx(0.8142857143, rel=1e-9)
    eigenvalues = np.array([0.05, 0.5, 5.0])
    expected = 0.5 * 4 * 0.3 * 1.9 / (0.1 * (3.8 - 0.3 * eigenvalues))
    value = damage(m, Momentum(0.9), eigenvalues, np.full(steps, 0.3), noise_multiplier=2.0)
    assert value == pytest.approx(expected.sum(), rel=1e-9)


@pytest.mark.parametrize("c", [0.2, 5.0])
def test_scaling_law(c):
    """eta -> c eta, H -> H / c, sigma -> sigma / c: D -> D / c. Not so for eta alone."""
    value = damage(DENSE, Momentum(0.9), EIGENVALUES, RATES)
    scaled = damage(DENSE, Momentum(0.9), EIGENVALUES / c, c * RATES, noise_multiplier=1 / c)
    assert scaled == pytest.approx(value / c, rel=1e-12)
    only_rate = damage(DENSE, Momentum(0.9), EIGENVALUES / 9, c * RATES)
    assert abs(only_rate / damage(DENSE, Momentum(0.9), EIGENVALUES / 9, RATES) - c**2) > 1e-3


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_last_row_of_the_momentum_workload(momentum):
    """-g at lambda = 0 is the last row of A_{mu,eta}, and A itself is a double sum."""
    A = engine.workload_matrix(Momentum(momentum), RATES)
    np.testing.assert_allclose(A, oracles.momentum_workload(RATES, momentum), rtol=1e-12)
    last = oracles.transfer_matrices(np.zeros((1, 1)), RATES, momentum)[:, 0, 0]
    np.testing.assert_allclose(A[-1], -last, rtol=1e-12)


def test_scale_of_the_strategy_and_of_sigma():
    arguments = (Momentum(0.9), EIGENVALUES, RATES)
    value = damage(DENSE, *arguments)
    scaled = Mechanism.from_strategy_matrix(3 * C)
    assert damage(scaled, *arguments) == pytest.approx(value, rel=1e-12)
    assert damage(DENSE, *arguments, noise_multiplier=3.0) == pytest.approx(9 * value, rel=1e-12)
    assert damage(DENSE, *arguments, noise_multiplier=0.0) == 0.0


def test_participation_enters_by_the_sensitivity_once():
    """Independent noise, k participations: k times the damage."""
    arguments = (WHITE, Momentum(0.9), EIGENVALUES, RATES)
    for evaluate in (damage, trajectory_damage):
        three = evaluate(*arguments, min_sep=4, max_participations=3)
        assert three == pytest.approx(3 * evaluate(*arguments), rel=1e-12)


def test_ranking_reversal_needs_two_momenta():
    """Delta(mu) = tr((K_a - K_b) Q_mu) / 2 changes its sign between mu = 0 and 0.95."""
    rates, differences = np.full(40, 1.0), []
    a = Mechanism.from_toeplitz(steps=40, strategy_coef=[1.0])
    b = Mechanism.from_toeplitz(steps=40, noising_coef=[1.0, -0.3])
    for momentum in (0.0, 0.95):
        g = oracles.transfer_matrices(np.eye(1), rates, momentum)[:, 0, 0]
        Ks = [
            np.linalg.norm(m.strategy_matrix, axis=0).max() ** 2
            * oracles.temporal_covariance(m.strategy_matrix)
            for m in (a, b)
        ]
        by_Q = 0.5 * g @ (Ks[0] - Ks[1]) @ g
        ours = [damage(m, Momentum(momentum), [1.0], rates) for m in (a, b)]
        assert ours[0] - ours[1] == pytest.approx(by_Q, rel=1e-9)
        differences.append(by_Q)
    assert differences[0] < 0 < differences[1]


# The noise-free path


@pytest.mark.parametrize("nesterov", [False, True])
def test_expected_loss_is_bias_plus_damage(nesterov):
    H, U = oracles.rotated(EIGENVALUES)
    start = np.array([1.0, -2.0, 0.5, 3.0])
    quiet = oracles.run(H, RATES, np.zeros((1, STEPS, 4)), U @ start, 0.9, nesterov)[-1, 0]
    optimizer = Momentum(0.9, nesterov=nesterov)
    value = expected_loss(DENSE, optimizer, EIGENVALUES, RATES, initial_error=start)
    noise = damage(DENSE, optimizer, EIGENVALUES, RATES)
    assert value == pytest.approx(0.5 * quiet @ H @ quiet + noise, rel=1e-12)


def test_expected_loss_with_weight_decay_pulls_to_zero():
    """Decay acts on theta = e + theta*, so it pulls the error away from zero."""
    H, U = oracles.rotated(EIGENVALUES)
    start, optimum, decay = np.array([1.0, -2.0, 0.5, 3.0]), np.array([2.0, 1.0, -1.0, 0.5]), 0.1
    quiet = oracles.run(
        H + decay * np.eye(4),
        RATES,
        np.zeros((1, STEPS, 4)),
        U @ start,
        0.9,
        pull=decay * (U @ optimum),
    )[-1, 0]
    options = {"initial_error": start, "optimum": optimum, "noise_multiplier": 0.0}
    decayed = Momentum(0.9, weight_decay=decay)
    code = LinearOptimizer.from_optax(
        lambda rate: optax.chain(optax.add_decayed_weights(decay), optax.sgd(rate, momentum=0.9))
    )
    for optimizer in (decayed, code):
        value = expected_loss(DENSE, optimizer, EIGENVALUES, RATES, **options)
        assert value == pytest.approx(0.5 * quiet @ H @ quiet, rel=1e-12)
        with pytest.raises(ValueError, match=r"optimum: got None; pass theta\*"):
            expected_loss(DENSE, optimizer, EIGENVALUES, RATES, initial_error=start)


# The jax core


def test_core_is_differentiable():
    """d damage / d (eigenvalue, rate) by jax against central differences."""

    def value(eigenvalue, rate):
        system = core.momentum_system(rate * RATES, 0.9, False, 0.0, 0.0)
        eigenvalues = eigenvalue * jnp.asarray(EIGENVALUES)
        g = core.transfer(system, eigenvalues)
        return core.dense_damage(g, eigenvalues, SENSITIVITY * DENSE.noising_matrix)

    with jax.enable_x64(True):
        assert float(value(1.0, 1.0)) == pytest.approx(
            damage(DENSE, Momentum(0.9), EIGENVALUES, RATES), rel=1e-12
        )
        slopes = [float(slope) for slope in jax.grad(value, argnums=(0, 1))(1.0, 1.0)]
    h = 1e-5
    changes = [
        damage(DENSE, Momentum(0.9), (1 + h) * EIGENVALUES, RATES)
        - damage(DENSE, Momentum(0.9), (1 - h) * EIGENVALUES, RATES),
        damage(DENSE, Momentum(0.9), EIGENVALUES, (1 + h) * RATES)
        - damage(DENSE, Momentum(0.9), EIGENVALUES, (1 - h) * RATES),
    ]
    np.testing.assert_allclose(slopes, np.array(changes) / (2 * h), rtol=1e-7)


# Global state


@pytest.mark.parametrize("flag", [False, True])
def test_same_bits_whatever_the_flag(flag):
    arguments = (DENSE, Momentum(0.9), EIGENVALUES, RATES)
    expected = damage(*arguments), damage_curve(*arguments)
    with jax.enable_x64(flag):
        found = damage(*arguments), damage_curve(*arguments)
        assert jax.config.jax_enable_x64 == flag
    assert found[0] == expected[0] and found[1].dtype == np.float64
    np.testing.assert_array_equal(found[1], expected[1])


SCRIPT = """
import json, random, sys, warnings
import jax, jax_privacy, matfree, numpy as np, optax, pandas, scipy.linalg, scipy.signal, dp_accounting
import jax_privacy.noise_addition, jax_privacy.matrix_factorization.banded
def state():
    return [dict(jax.config.values), list(warnings.filters), np.geterr(), np.get_printoptions(),
            np.random.get_state()[1].tolist(), random.getstate()]
before = state()
loaded = set(sys.modules)
from momentdp.damage import damage, damage_curve
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation import rank, scores
from momentdp.mechanisms.mechanism import Mechanism
m = Mechanism.from_toeplitz(steps=12, strategy_coef=[1.0, 0.5, 0.3])
value = damage(m, Momentum(0.9), [0.1, 1.0], schedules.cosine(12, 0.3))
curve = damage_curve(m, Momentum(0.9), [0.1, 1.0], schedules.cosine(12, 0.3))
refused = []
for build in (lambda: Momentum("0.9"), lambda: schedules.constant(2.5, 0.1)):
    try:
        build()
    except ValueError as error:
        refused.append(str(error))
print(json.dumps({"same": before == state(), "value": value, "dtype": str(curve.dtype),
                  "matplotlib": "matplotlib" in set(sys.modules) - loaded, "refused": refused}))
"""


def test_import_and_use_change_no_global_state():
    """A fresh interpreter, x64 off: jax's settings, warnings, NumPy's and Python's random states."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    m = Mechanism.from_toeplitz(steps=12, strategy_coef=[1.0, 0.5, 0.3])
    value = damage(m, Momentum(0.9), [0.1, 1.0], schedules.cosine(12, 0.3))
    assert found["same"] and not found["matplotlib"]
    assert found["value"] == value and found["dtype"] == "float64"
    # Without the suite's type checker the package's own refusals speak.
    assert found["refused"] == [
        "momentum: got '0.9'; pass a number in [0, 1)",
        "steps: got 2.5; pass a whole number of at least 1",
    ]


# Refusals


def call(evaluate=damage, m=DENSE, optimizer=None, spectrum=EIGENVALUES, rates=RATES, **options):
    return evaluate(m, optimizer or Momentum(0.9), spectrum, rates, **options)


BAD = [
    ({"m": np.eye(STEPS)}, r"m: got ndarray; pass a Mechanism: Mechanism\.from_strategy_matrix"),
    ({"optimizer": 0.5}, r"optimizer: got 0\.5; pass Momentum\(0\.9\), or LinearOptimizer"),
    ({"spectrum": [1.0, -0.1]}, r'eigenvalues: got -0\.1; .*negative="clip"'),
    ({"spectrum": [1.0, np.nan]}, r"eigenvalues: got nan at index \(1,\); pass finite"),
    ({"spectrum": [[1.0]]}, r"eigenvalues: got shape \(1, 1\); pass"),
    ({"rates": RATES[:-1]}, r"mechanism 'mechanism': got horizon 11; build it for steps = 10"),
    ({"rates": np.r_[RATES[:-1], np.nan]}, r"learning_rates: got nan at index \(10,\); pass"),
    ({"rates": -RATES}, r"learning_rates: got from .*; pass rates > 0"),
    ({"rates": np.full(STEPS, 4.0)}, r"learning_rates: got peak 4 on .*; lower the rate"),
    ({"noise_multiplier": -1.0}, r"noise_multiplier: got -1\.0; pass a number in \[0, inf\)"),
    ({"noise_multiplier": np.nan}, r"noise_multiplier: got nan; pass a number"),
    ({"noise_multiplier": np.inf}, r"noise_multiplier: got inf; pass a number"),
    ({"loss_curvature": [1.0]}, r"loss_curvature: got shape \(1,\).*; pass 4 values"),
    ({"loss_curvature": [1.0, 1.0, 1.0, -1.0]}, r"loss_curvature: got .*smallest -1; pass"),
    ({"loss_curvature": [1.0, 1.0, 1.0, np.nan]}, r"loss_curvature: got nan at index"),
    ({"max_participations": 2}, r"min_sep: got None; give it"),
    ({"min_sep": 0, "max_participations": 2}, r"min_sep: got 0; pass a whole number"),
]


@pytest.mark.parametrize("evaluate", [damage, trajectory_damage])
@pytest.mark.parametrize(("given", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input(evaluate, given, message):
    with pytest.raises(ValueError, match="^" + message):
        call(evaluate, **given)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.ones(3), r"weights: got shape \(3,\); pass 11 values"),
        (-np.ones(STEPS), r"weights: got .*; pass 11 values >= 0"),
        (np.full(STEPS, np.nan), r"weights: got nan"),
    ],
)
def test_bad_trajectory_weights(weights, message):
    with pytest.raises(ValueError, match=message):
        call(trajectory_damage, weights=weights)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"initial_error": [1.0]}, r"initial_error: got shape \(1,\); pass one value a mode"),
        ({"initial_error": np.full(4, np.nan)}, r"initial_error: got nan"),
        ({"initial_error": np.ones(4), "optimum": [1.0]}, r"; pass one value a mode"),
    ],
)
def test_bad_initial_error(given, message):
    with pytest.raises(ValueError, match=message):
        call(expected_loss, **given)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_exploding_inverse_is_refused():
    m = Mechanism.from_toeplitz(steps=1024, strategy_coef=[1.0, -3.0])
    with pytest.raises(ValueError, match=r"mechanism 'mechanism': got a C\^-1 that overflows"):
        call(m=m, rates=np.full(1024, 0.1))


def test_unstable_evaluated_on_request():
    H, _ = oracles.rotated(EIGENVALUES)
    rates = np.full(STEPS, 4.0)
    G = oracles.transfer_matrices(H, rates, 0.9)
    value = call(rates=rates, allow_unstable=True)
    assert value == pytest.approx(oracles.literal_damage(H, G, K), rel=1e-10)
    with pytest.warns(UserWarning, match="learning_rates: peak 4 on eigenvalue 1 is unstable"):
        call(rates=np.r_[4.0, RATES[1:]])
