"""Private logistic regression against plain NumPy, jax-privacy, scipy and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import NeighboringRelation
from scipy.linalg import toeplitz
from sklearn.linear_model import LogisticRegression

from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, logistic_task

STEPS = 16


K = np.arange(1, STEPS)
ROOT = np.cumprod(np.r_[1.0, (K - 0.5) / K])  # A^{1/2} of the prefix workload: Toeplitz
# its inverse, times the column norm that sensitivity 1 asks for
ROOT_NOISING = np.tril(toeplitz(np.cumprod(np.r_[1.0, (K - 1.5) / K]))) * np.linalg.norm(ROOT)


@pytest.fixture(scope="module")
def task():
    return logistic_task.make_task(3, dimension=5, examples=320, batch=20, calibration=60)


@pytest.fixture(scope="module")
def pool():
    return {
        "iid": Mechanism.from_toeplitz(steps=STEPS, strategy_coef=[1.0]),
        "sqrt": Mechanism.from_toeplitz(steps=STEPS, strategy_coef=ROOT),  # sensitivity not 1
    }


def numpy_run(task, condition, noise, clip_norm, shards):
    theta, buffer = np.zeros(task.features.shape[1]), 0.0
    for t, rate in enumerate(condition.learning_rates):
        shard = shards[t % len(shards)]
        mean = np.zeros_like(theta)
        for x, y in zip(task.features[shard], task.labels[shard], strict=True):
            gradient = (1 / (1 + np.exp(-x @ theta)) - y) * x
            mean += gradient * min(1.0, clip_norm / np.linalg.norm(gradient)) / len(shard)
        buffer = condition.optimizer.momentum * buffer + mean + noise[t]
        theta = theta - rate * buffer
    return theta


@pytest.mark.parametrize("name", ["L0", "L1", "L3", "L2'"])
def test_training_equals_a_plain_numpy_loop(task, pool, name):
    condition = logistic.conditions(task)[name]
    seeds = [4, 9]
    last = logistic.train(task, pool, condition, seeds)[:, :, -1]
    stddev = logistic.noise_stddev(task)
    white = logistic.correlated_noise({"iid": pool["iid"]}, [9], stddev, 5, STEPS)[0, 0]
    for i, matrix in enumerate([np.eye(STEPS), ROOT_NOISING]):
        expected = numpy_run(task, condition, matrix @ white, task.clip_norm, task.shards)
        np.testing.assert_allclose(last[i, 1], expected, rtol=1e-11)


def test_nesterov_with_weight_decay_equals_optax_run_step_by_step(task, pool):
    rates = np.full(STEPS, 0.7)
    ours = logistic.Condition(Momentum(0.8, nesterov=True, weight_decay=0.1), rates)
    last = logistic.train(task, pool, ours, [0], private=False)[0, 0, -1]
    with jax.enable_x64(True):
        chain = optax.chain(
            optax.add_decayed_weights(0.1), optax.sgd(0.7, momentum=0.8, nesterov=True)
        )
        theta = jnp.zeros(5)
        state = chain.init(theta)
        mean = jax.jit(logistic.clipped_gradient(task.clip_norm, 20).fun)
        for shard in task.shards:
            gradient = mean(theta, task.features[shard], task.labels[shard])
            update, state = chain.update(gradient, state, theta)
            theta = optax.apply_updates(theta, update)
    np.testing.assert_allclose(last, theta, rtol=1e-10)


@pytest.mark.parametrize("clipped", [True, False])
@pytest.mark.parametrize("sampled", [True, False])
def test_sources_switched_off_equal_a_plain_numpy_loop(task, pool, clipped, sampled):
    condition = logistic.conditions(task)["L1"]
    switches = {"private": False, "clipped": clipped, "sampled": sampled}
    last = logistic.train(task, pool, condition, [0], **switches)[1, 0, -1]
    shards = task.shards if sampled else task.shards.reshape(1, -1)
    clip_norm = task.clip_norm if clipped else np.inf
    expected = numpy_run(task, condition, np.zeros((STEPS, 5)), clip_norm, shards)
    np.testing.assert_allclose(last, expected, rtol=1e-11)


def test_full_gradient_descent_equals_the_closed_form_on_a_quadratic_scale(task, pool):
    # Tiny steps: theta_T = -(sum of rates) grad F(0) to first order, grad F(0) = X'(1/2 - y) / N.
    rates = np.full(STEPS, 1e-6)
    condition = logistic.Condition(Momentum(0.0), rates)
    switches = {"private": False, "clipped": False, "sampled": False}
    last = logistic.train(task, pool, condition, [0], **switches)[0, 0, -1]
    first_order = task.features.T @ (task.labels - 0.5) / len(task.labels) * rates.sum()
    np.testing.assert_allclose(last, first_order, rtol=1e-4)


def test_optimum_is_that_of_scikit_learn(task):
    sklearn_fit = LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-10, max_iter=10_000)
    expected = sklearn_fit.fit(task.features, task.labels).coef_[0]
    np.testing.assert_allclose(task.optimum, expected, atol=1e-4)
    assert abs(task.excess(expected, against="optimum")) < 1e-10
    assert task.excess(task.optimum) < 0


def test_clipping_is_that_of_the_definition(task):
    gradient = logistic.clipped_gradient(task.clip_norm, 20)
    theta = np.linspace(-2, 2, 5)
    x, y = task.features[task.shards[0]], task.labels[task.shards[0]]
    with jax.enable_x64(True):
        ours = np.asarray(gradient(jnp.asarray(theta), jnp.asarray(x), jnp.asarray(y)))
    each = (1 / (1 + np.exp(-x @ theta)) - y)[:, None] * x
    norms = np.linalg.norm(each, axis=1)
    assert (norms > task.clip_norm).any() and (norms < task.clip_norm).any()
    each *= np.minimum(1, task.clip_norm / norms)[:, None]
    np.testing.assert_allclose(ours, each.mean(axis=0), rtol=1e-12)


def test_removing_an_example_moves_the_mean_by_no_more_than_the_sensitivity(task):
    x, y = task.features[task.shards[0]], task.labels[task.shards[0]]
    gradient = logistic.clipped_gradient(task.clip_norm, len(y))
    bound = gradient.sensitivity(NeighboringRelation.ADD_OR_REMOVE_ONE)
    with jax.enable_x64(True):
        mean = jax.jit(gradient.fun)
        whole = mean(np.ones(5), x, y)
        moved = [
            whole - mean(np.ones(5), np.delete(x, i, 0), np.delete(y, i)) for i in range(len(y))
        ]
    sizes = np.linalg.norm(moved, axis=1)
    assert sizes.max() == pytest.approx(
        bound, rel=1e-9
    )  # reached: half of the examples are clipped


@pytest.mark.parametrize("relation", list(NeighboringRelation))
def test_noise_counts_the_sensitivity_that_jax_privacy_states(task, relation):
    gradient = logistic.clipped_gradient(task.clip_norm, 20)
    assert logistic.noise_stddev(
        task, 1.0, 1e-5, neighboring_relation=relation.name.lower()
    ) == pytest.approx(3.73063163481594 * gradient.sensitivity(relation), rel=1e-10)


def test_injected_noise_has_sigma_times_sensitivity_within_one_percent(task, pool):
    expected = 1.08116184952023921 * task.clip_norm / 20  # reference sigma at (4, 1e-5)
    assert logistic.noise_stddev(task) == pytest.approx(expected, rel=1e-10)
    iid = {"iid": pool["iid"]}
    noise = logistic.correlated_noise(iid, range(500), expected, 5, STEPS)
    assert noise.std() == pytest.approx(expected, rel=0.01)
    # What training injects, not only what is drawn: iid run minus noise-free run after one step.
    condition = logistic.Condition(Momentum(0.0), np.ones(STEPS))
    noisy = logistic.train(task, iid, condition, range(3000))[0, :, 1]
    quiet = logistic.train(task, iid, condition, [0], private=False)[0, :, 1]
    assert (noisy - quiet).std() == pytest.approx(expected, rel=0.01)


def test_noise_covariance_is_inverse_strategy_and_paired_across_mechanisms(pool):
    noise = logistic.correlated_noise(pool, range(4000), 1.0, 2, STEPS)
    expected = ROOT_NOISING @ ROOT_NOISING.T
    empirical = np.einsum("ntd,nsd->ts", noise[1], noise[1]) / 8000
    assert np.abs(empirical - expected).max() < 0.06 * np.diag(expected).max()
    np.testing.assert_allclose(noise[1, 7], ROOT_NOISING @ noise[0, 7], rtol=1e-12)


def test_task_follows_appendix_f():
    task = logistic_task.make_task(0)
    assert task.features.shape == (4096, 16) and task.shards.shape == (128, 32)
    assert sorted(task.shards.ravel()) == list(range(4096))
    np.testing.assert_allclose(task.features.var(axis=0), np.logspace(-2, -1, 16), rtol=0.1)
    x = task.calibration_features
    np.testing.assert_allclose(task.calibration_hessian(), x.T @ x / 2000, rtol=1e-12)
    np.testing.assert_allclose(
        task.hessian(), task.features.T @ task.features / (4 * 4096), rtol=1e-12
    )
    at_zero = np.linalg.norm((0.5 - task.calibration_labels)[:, None] * x, axis=1)
    assert task.clip_norm == pytest.approx(np.median(at_zero))
    # without training, the excess is about sum(s) / 128 / 16 x |w*|^2 x 16: same size as tr(H) / 2
    expected = 0.5 * task.teacher @ task.hessian() @ task.teacher
    assert float(task.excess(np.zeros(16))) == pytest.approx(expected, rel=0.6)


def test_random_sources_are_separate():
    small = {"dimension": 4, "examples": 64, "batch": 8, "calibration": 20}
    base = logistic_task.make_task(1, **small)
    other = logistic_task.make_task(1, label_seed=2, split_seed=3, **small)
    np.testing.assert_array_equal(base.features, other.features)
    np.testing.assert_array_equal(base.teacher, other.teacher)
    assert (base.labels != other.labels).any() and (base.shards != other.shards).any()
    # one seed, six streams: no two sources ever see the same numbers
    assert (base.features[:20] != base.calibration_features).all()
    standard = base.features / np.sqrt(np.logspace(-2, -1, 4))
    iid = {"iid": Mechanism.from_toeplitz(steps=8, strategy_coef=[1.0])}
    white = logistic.correlated_noise(iid, [1], 1.0, 4, 8)[0, 0]
    assert np.abs(white - standard[:8]).min() > 1e-6
    assert np.abs(base.teacher * 2 - standard[0]).min() > 1e-6
    moved = logistic_task.make_task(1, teacher_seed=5, calibration_seed=6, **small)
    np.testing.assert_array_equal(base.features, moved.features)
    assert base.clip_norm != moved.clip_norm and (base.teacher != moved.teacher).all()


def test_conditions_have_the_stated_rates(task):
    cases = logistic.conditions(task, el=0.2)
    peak = 0.2 / np.linalg.eigvalsh(task.calibration_hessian()).max()
    np.testing.assert_allclose(cases["L0"].learning_rates, peak)
    assert cases["L0"].optimizer == Momentum(0.0) and cases["L2'"].optimizer == Momentum(0.9)
    t = np.arange(STEPS)
    np.testing.assert_allclose(
        cases["L2"].learning_rates, peak * 0.5 * (1 + np.cos(np.pi * t / STEPS))
    )
    np.testing.assert_allclose(cases["L3"].learning_rates[:8], peak * (t[:8] + 1) / 8)
    np.testing.assert_allclose(cases["L1'"].learning_rates / 0.1, peak)
    # el = 2 / (1 - .9) would diverge without momentum: it is capped at 1.9
    stepped = cases["L1''"]
    assert stepped.optimizer == Momentum(0.0)
    np.testing.assert_allclose(stepped.learning_rates, peak * 1.9 / 0.2)
    assert len(set(logistic.NINE_CONDITIONS)) == 9 and set(logistic.NINE_CONDITIONS) < set(cases)
    nine = [cases[name] for name in logistic.NINE_CONDITIONS]
    assert sorted(c.optimizer.momentum for c in nine) == [0.0] * 3 + [0.5] * 3 + [0.9] * 3
    assert all(c.learning_rates.max() <= peak * (1 + 1e-12) for c in nine)


def test_study_is_a_row_a_mechanism_and_deterministic(task, pool):
    cases = {k: logistic.conditions(task)[k] for k in ("L0", "L1")}
    rows = logistic.study(task, pool, cases, [5, 6, 7])
    assert list(rows.index) == [(c, m) for c in cases for m in pool]
    again = logistic.study(task, pool, cases, [7])
    np.testing.assert_allclose(again[7], rows[7], rtol=1e-9)
    last = logistic.train(task, pool, cases["L1"], [6])[1, 0, -1]
    assert rows.loc[("L1", "sqrt"), 6] == pytest.approx(float(task.excess(last)), rel=1e-9)


def test_mirrored_noise_cancels_the_first_order(task, pool):
    condition, faint = logistic.conditions(task)["L1"], {"epsilon": 1e5}
    quiet = logistic.train(task, pool, condition, [0], private=False)[0, 0, -1]
    plain, mirror = (
        logistic.train(task, pool, condition, range(4), mirrored=m, **faint)[0, :, -1]
        for m in (False, True)
    )
    moved, mean = np.abs(plain - quiet).max(), np.abs((plain + mirror) / 2 - quiet).max()
    assert mean < 0.1 * moved


def test_native_noisecurve_ties_with_its_own_regularisation(task, monkeypatch, tmp_path):
    monkeypatch.setenv("MOMENTDP_CACHE", str(tmp_path))
    own = logistic.native_pool(task, bands=4, pool=["noisecurve"])["noisecurve"]
    curve = logistic.regularised(task, bands=4)
    ours, theirs = own.strategy_matrix, curve["eps=0.001"].strategy_matrix
    np.testing.assert_allclose(np.abs(ours), np.abs(theirs), atol=1e-3)
    # what a larger eps buys: the largest noise of any step falls, eps by eps
    loudest = [np.linalg.norm(m.noising_matrix, axis=1).max() for m in curve.values()]
    assert np.all(np.diff(loudest) < 0) and len(curve) == 11


def refused(match, call, *args, **kwargs):
    with pytest.raises(ValueError, match=match):
        call(*args, **kwargs)


def test_bad_input_is_refused(task, pool):
    condition = logistic.conditions(task)["L0"]
    refused("batch: got 100.*divisor", logistic_task.make_task, 0, batch=100)
    refused("labels: got a separable", logistic_task.make_task, 0, examples=16, batch=4)
    refused("separable", logistic_task.training_optimum, np.eye(3)[:, :2], np.zeros(3))
    refused("l2_clip_norm: got 0.0", logistic.noise_stddev, task._replace(clip_norm=0.0))
    refused("epsilon: got -1", logistic.noise_stddev, task, epsilon=-1)
    refused("epsilon: got 0", logistic.noise_stddev, task, epsilon=0)
    refused("delta: got 1.0", logistic.noise_stddev, task, delta=1.0)
    refused("delta: got 0", logistic.noise_stddev, task, delta=0)
    refused(
        "neighboring_relation: got 'swap'", logistic.noise_stddev, task, neighboring_relation="swap"
    )
    other = {"mine": Mechanism.from_toeplitz(steps=8, strategy_coef=[1.0], name="mine")}
    refused("mine.*horizon 8", logistic.train, task, other, condition, [0])
    refused("mechanisms: got none", logistic.train, task, {}, condition, [0])
    short = condition._replace(learning_rates=np.ones(4))
    refused("learning_rates: got 4 rates", logistic.train, task, pool, short, [0])
