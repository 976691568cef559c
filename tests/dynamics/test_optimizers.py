"""Momentum and linearised optax code against optax run on noise and torch's recurrences."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import oracles
import pytest

from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum
from momentdp.dynamics.transfer import transfer

STEPS = 11
EIGENVALUES = np.array([0.0, 0.1, 1.0])
RATES = schedules.warmup_cosine(STEPS, 0.4, 3)


def by_trace(rate):
    """Momentum before the learning rate, as optax.sgd chains it, but with another transform."""
    return optax.chain(optax.trace(0.9), optax.scale_by_schedule(rate), optax.scale(-1.0))


def rate_first(rate):
    """The learning rate before the momentum: v <- mu v + eta g, another optimizer."""
    return optax.chain(optax.scale_by_schedule(rate), optax.trace(0.9), optax.scale(-1.0))


def decayed(rate):
    return optax.chain(optax.add_decayed_weights(0.15), optax.sgd(rate, momentum=0.9))


def decoupled(rate):
    """AdamW's way, without Adam: the decay joins the update after the momentum."""
    return optax.chain(
        optax.trace(0.9), optax.add_decayed_weights(0.15), optax.scale_by_learning_rate(rate)
    )


def averaged(rate):
    """An exponential average with bias correction, which varies with the step count."""
    return optax.chain(optax.ema(0.9, debias=True), optax.scale_by_learning_rate(rate))


def two_buffers(rate):
    return optax.chain(optax.trace(0.5), optax.trace(0.8, nesterov=True), optax.sgd(rate))


SAME = {  # optax code and the Momentum that it is
    "sgd": (lambda rate: optax.sgd(rate), Momentum(0.0)),
    "heavy ball": (lambda rate: optax.sgd(rate, momentum=0.9), Momentum(0.9)),
    "Nesterov": (
        lambda rate: optax.sgd(rate, momentum=0.8, nesterov=True),
        Momentum(0.8, nesterov=True),
    ),
    "weight decay": (decayed, Momentum(0.9, weight_decay=0.15)),
    "trace, schedule": (by_trace, Momentum(0.9)),
    "EMA is dampening": (
        lambda rate: optax.chain(optax.ema(0.9, debias=False), optax.scale_by_learning_rate(rate)),
        Momentum(0.9, dampening=0.9),
    ),
}
OWN = {
    "rate first": rate_first,
    "decoupled decay": decoupled,
    "bias-corrected average": averaged,
    "two buffers": two_buffers,
}


def run_optax(factory, H, rates, noise, start):
    """theta after each step of the optax code on f = theta' H theta / 2 with noisy gradients."""
    with jax.enable_x64(True):
        table = jnp.asarray(rates)
        transformation = factory(lambda count: table[count])
        theta = jnp.asarray(start)
        state = transformation.init(theta)
        path = []
        for z in noise:
            update, state = transformation.update(H @ theta + z, state, theta)
            theta = optax.apply_updates(theta, update)
            path.append(np.asarray(theta))
    return np.array(path)


@pytest.mark.parametrize("name", [*SAME, *OWN])
def test_optax_run_on_noise(name):
    """Final error of the real code = sum_t g_i[t] z_t in each mode, for a random noise path;
    and the transfer of the Momentum that it is."""
    factory, closed = SAME.get(name) or (OWN[name], None)
    H, U = oracles.rotated(EIGENVALUES, seed=3)
    noise = np.random.default_rng(0).normal(size=(STEPS, 3))
    final = run_optax(factory, H, RATES, noise, np.zeros(3))[-1]
    g = transfer(LinearOptimizer.from_optax(factory), EIGENVALUES, RATES)
    np.testing.assert_allclose(U.T @ final, np.einsum("it,ti->i", g, noise @ U), rtol=1e-11)
    if closed:
        np.testing.assert_allclose(g, transfer(closed, EIGENVALUES, RATES), rtol=1e-12, atol=1e-15)


def test_from_optax_sees_the_horizon_only():
    """A schedule that optax asks past the end is not extrapolated: the last rate is enough."""
    g = transfer(LinearOptimizer.from_optax(SAME["heavy ball"][0]), [1.0], [0.3])
    np.testing.assert_allclose(g, [[-0.3]])


def torch_sgd(J, rates, noise, momentum, nesterov=False, dampening=0.0, weight_decay=0.0):
    """torch.optim.SGD's documented algorithm (2.x), for one path of noisy gradients (T, d)."""
    theta = np.zeros(len(J))
    buffer = None
    for eta, z in zip(rates, noise, strict=True):
        g = J @ theta + z
        if weight_decay != 0:
            g = g + weight_decay * theta
        if momentum != 0:
            buffer = g if buffer is None else momentum * buffer + (1 - dampening) * g
            g = g + momentum * buffer if nesterov else buffer
        theta = theta - eta * g
    return theta


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ],
)
def test_torch_convention(settings):
    noise = np.random.default_rng(1).normal(size=(STEPS, 3))
    final = torch_sgd(np.diag(EIGENVALUES), RATES, noise, **settings)
    g = transfer(Momentum(**settings), EIGENVALUES, RATES)
    np.testing.assert_allclose(final, np.einsum("it,ti->i", g, noise), rtol=1e-12)


def test_dampening_differs_from_torch_in_the_first_step_only():
    """torch leaves the first gradient undamped: its first column is 1 / (1 - tau) times ours."""
    ours = transfer(Momentum(0.9, dampening=0.6), EIGENVALUES, RATES)
    impulses = np.eye(STEPS)[:, :, None] * np.ones(3)
    theirs = np.array(
        [torch_sgd(np.diag(EIGENVALUES), RATES, z, 0.9, dampening=0.6) for z in impulses]
    ).T
    np.testing.assert_allclose(theirs[:, 1:], ours[:, 1:], rtol=1e-12)
    # Only the kick differs at once; torch's later steps damp as ours do.
    np.testing.assert_allclose(theirs[:, 0] * 0.4, ours[:, 0], rtol=1e-12)
    assert "torch" in Momentum.__doc__


REFUSED = {
    "Adam": lambda rate: optax.adam(rate),
    "AdamW": lambda rate: optax.adamw(rate),
    "RMSProp": lambda rate: optax.rmsprop(rate),
    "sign": lambda rate: optax.sign_sgd(rate),
    "clip": lambda rate: optax.chain(optax.clip(1.0), optax.sgd(rate, momentum=0.9)),
    "clip by norm": lambda rate: optax.chain(
        optax.clip_by_global_norm(1.0), optax.sgd(rate, momentum=0.9)
    ),
    "clip at a large norm": lambda rate: optax.chain(
        optax.clip_by_global_norm(1e4), optax.sgd(rate, momentum=0.9)
    ),
    "coordinates mixed": lambda rate: optax.chain(
        optax.stateless(lambda updates, params: updates - updates.mean()), optax.sgd(rate)
    ),
    "coordinates not alike": lambda rate: optax.chain(
        optax.stateless(lambda updates, params: updates * jnp.arange(1.0, 4.0)), optax.sgd(rate)
    ),
    "NaN in one step": lambda rate: optax.sgd(lambda count: jnp.where(count == 3, jnp.nan, 0.1)),
    "state of other shapes": lambda rate: optax.inject_hyperparams(optax.sgd)(learning_rate=rate),
}


@pytest.mark.parametrize("name", REFUSED)
def test_not_affine_is_refused_with_the_reason(name):
    with pytest.raises(ValueError, match=r"^factory: got .*; pass "):
        transfer(LinearOptimizer.from_optax(REFUSED[name]), EIGENVALUES, RATES)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"momentum: got 1\.0; .*\[0, 1\)"),
        ({"momentum": -0.1}, r"momentum: got -0\.1; .*\[0, 1\)"),
        ({"momentum": np.nan}, r"momentum: got nan; .*\[0, 1\)"),
        ({"dampening": 1.0}, r"dampening: got 1\.0; .*\[0, 1\)"),
        ({"weight_decay": -1e-3}, r"weight_decay: got -0\.001; .*\[0, inf\)"),
        ({"weight_decay": np.inf}, r"weight_decay: got inf; .*\[0, inf\)"),
        ({"nesterov": True, "dampening": 0.5}, r"dampening: got 0\.5; pass 0 with nesterov"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        Momentum(**settings)


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([0.1, np.nan], r"learning_rates: got nan at index \(1,\); pass finite"),
        ([0.1, np.inf], r"learning_rates: got inf at index \(1,\); pass finite"),
        ([0.1, -0.1], r"learning_rates: got from -0\.1 to 0\.1; pass rates > 0"),
        ([0.0, 0.0], r"learning_rates: got from 0 to 0; pass rates > 0"),
        (0.1, r"learning_rates: got shape \(\); pass a non-empty array of 1"),
        ([[0.1]], r"learning_rates: got shape \(1, 1\); pass a non-empty array of 1"),
        ([], r"learning_rates: got shape \(0,\); pass a non-empty array of 1"),
        ("cosine", r"learning_rates: got str; pass numbers"),
        (None, r"learning_rates: got "),
        ([0.1, 0.1j], r"learning_rates: got .*; pass"),
    ],
)
@pytest.mark.parametrize(
    "optimizer", [Momentum(0.5), LinearOptimizer.from_optax(optax.sgd)], ids=["closed", "optax"]
)
def test_bad_rates(optimizer, rates, message):
    with pytest.raises(ValueError, match=message):
        transfer(optimizer, [1.0], rates)
