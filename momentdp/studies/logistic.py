"""Section 3.3 and Appendix F: private logistic regression, clipped example by example.

Every random source has a seed of its own: features, teacher, labels, split, calibration and, per
run, privacy noise. A noise seed draws the same w for every mechanism and condition (paired runs);
the mechanism turns it into z = C^{-1} w.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import scipy.linalg
import scipy.optimize
import scipy.special
from jax_privacy import clipping
from jaxtyping import Float, Int

from momentdp._checks import count, finite_array, number, refuse
from momentdp.dynamics import schedules

SOURCES = ("features", "teacher", "labels", "split", "calibration", "noise")
RELATIONS = {
    "add_or_remove_one": dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE,
    "zero_out": dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
    "replace_one": dp_accounting.NeighboringRelation.REPLACE_ONE,
}


def _random(source: str, seed: int) -> np.random.Generator:
    return np.random.default_rng(
        np.random.SeedSequence(count("seed", seed, 0), spawn_key=(SOURCES.index(source),))
    )


def example_loss(theta, features, label):
    """log(1 + e^m) - y m with m = x'theta: the loss of one example with label y in {0, 1}."""
    margin = features @ theta
    return jnp.logaddexp(0.0, margin) - label * margin


class Task(NamedTuple):
    """One data set; ``clip_norm`` is the median gradient norm at theta_0 = 0 on the calibration split."""

    features: Float[np.ndarray, "examples dim"]
    labels: Float[np.ndarray, " examples"]
    teacher: Float[np.ndarray, " dim"]
    shards: Int[np.ndarray, "steps batch"]
    calibration_features: Float[np.ndarray, "calibration dim"]
    calibration_labels: Float[np.ndarray, " calibration"]
    clip_norm: float
    optimum: Float[np.ndarray, " dim"]

    def loss(self, theta) -> Float[np.ndarray, "..."]:
        """Mean training loss (nats) at one or many ``theta`` (..., dim)."""
        margins = np.asarray(theta) @ self.features.T
        return np.asarray((np.logaddexp(0.0, margins) - self.labels * margins).mean(axis=-1))

    def excess(self, theta, against: str = "teacher") -> Float[np.ndarray, "..."]:
        """Loss minus that of ``against``: 'teacher' (w*, the paper's) or 'optimum' (of training)."""
        return np.asarray(self.loss(theta) - self.loss(getattr(self, against)))

    def hessian(self, theta=None, of: str = "training") -> Float[np.ndarray, "dim dim"]:
        """Hessian of the mean loss at ``theta`` (default 0) on the 'training' or 'calibration' set.

        At 0 they are H_full and H_cal of Appendix F: X'X / (4 N).
        """
        x = self.features if of == "training" else self.calibration_features
        p = scipy.special.expit(x @ (np.zeros(x.shape[1]) if theta is None else theta))
        return x.T @ (x * (p * (1 - p))[:, None]) / len(x)

    @property
    def largest_eigenvalue(self) -> float:
        """lambda_max of H_cal, which sets the step size."""
        return float(np.linalg.eigvalsh(self.hessian(of="calibration"))[-1])


def training_optimum(features, labels) -> Float[np.ndarray, " dim"]:
    """Minimiser of the mean logistic loss; refuses separable labels, which have none."""
    x = finite_array("features", features, 2)
    signed = x * (2 * finite_array("labels", labels, 1) - 1)[:, None]
    # Some w with no wrong side and one right side exists iff this bounded problem exceeds 0.
    rows = np.vstack([signed, -signed])
    bounds = np.repeat([1.0, 0.0], len(x))
    found = scipy.optimize.linprog(-signed.sum(axis=0), A_ub=rows, b_ub=bounds, bounds=(None, None))
    if found.status != 0 or -found.fun > 1e-7:
        raise refuse(
            "labels", "a linearly separable set", "draw more examples or another seed: no minimiser"
        )

    def probability(theta):
        return scipy.special.expit(x @ theta)

    def gradient(theta):
        return x.T @ (probability(theta) - labels) / len(x)

    def hessian(theta):
        p = probability(theta)
        return x.T @ (x * (p * (1 - p))[:, None]) / len(x)

    return scipy.optimize.root(gradient, np.zeros(x.shape[1]), jac=hessian, tol=1e-13).x


def make_task(
    data_seed: int = 0,
    *,
    dimension: int = 16,
    examples: int = 4096,
    steps: int = 128,
    calibration: int = 500,
    teacher_seed: int | None = None,
    label_seed: int | None = None,
    split_seed: int | None = None,
    calibration_seed: int | None = None,
) -> Task:
    """The data set of Appendix F.1: x ~ N(0, diag(s)), s = logspace(-2, -1) variances, w* ~ N(0, I/d).

    The examples fall into ``steps`` disjoint shards of equal size. The calibration split is a fresh
    public draw of ``calibration`` examples. The other seeds follow ``data_seed`` unless given.
    Raises ValueError for shards that do not divide the examples, and for separable labels.
    """
    d, n, steps = count("dimension", dimension), count("examples", examples), count("steps", steps)
    if n % steps:
        raise refuse("steps", steps, f"pass a divisor of examples = {n}: shards have one size")

    def source(name, seed):
        return _random(name, data_seed if seed is None else seed)

    spread = np.sqrt(np.logspace(-2, -1, d))
    teacher = source("teacher", teacher_seed).normal(size=d) / np.sqrt(d)
    public = source("calibration", calibration_seed)
    x = source("features", data_seed).normal(size=(n, d)) * spread
    x_cal = public.normal(size=(count("calibration", calibration), d)) * spread
    y = source("labels", label_seed).uniform(size=n) < scipy.special.expit(x @ teacher)
    y_cal = public.uniform(size=len(x_cal)) < scipy.special.expit(x_cal @ teacher)
    return Task(
        features=x,
        labels=y.astype(np.float64),
        teacher=teacher,
        shards=source("split", split_seed).permutation(n).reshape(steps, n // steps),
        calibration_features=x_cal,
        calibration_labels=y_cal.astype(np.float64),
        clip_norm=float(np.median(0.5 * np.linalg.norm(x_cal, axis=1))),  # |p - y| = 1/2 at 0
        optimum=training_optimum(x, y.astype(np.float64)),
    )


class Condition(NamedTuple):
    """An optimizer setting: heavy-ball momentum and learning rates (steps,)."""

    momentum: float
    learning_rates: Float[np.ndarray, " steps"]


def conditions(
    task: Task, *, el: float | int = 0.1, momentum: float | int = 0.9, warmup_steps: int = 8
) -> dict[str, Condition]:
    """L0 to L3 of Appendix F.5, and L1' to L3' with eta (1 - mu) held at L0's eta.

    ``el`` = peak learning rate x lambda_max(H_cal). L0 has no momentum and a constant rate; 1, 2, 3
    have momentum with constant, cosine and warmup-cosine rates.
    """
    steps = len(task.shards)
    momentum = number("momentum", momentum, 0.0, 1.0)
    peak = number("el", el, 0.0, open_low=True) / task.largest_eigenvalue
    found = {"L0": Condition(0.0, schedules.constant(steps, peak))}
    for mark, rate in (("", peak), ("'", peak * (1 - momentum))):
        found[f"L1{mark}"] = Condition(momentum, schedules.constant(steps, rate))
        found[f"L2{mark}"] = Condition(momentum, schedules.cosine(steps, rate))
        found[f"L3{mark}"] = Condition(
            momentum, schedules.warmup_cosine(steps, rate, warmup_steps=warmup_steps)
        )
    return found


def clipped_gradient(clip_norm, batch_size: int) -> clipping.BoundedSensitivityCallable:
    """jax-privacy's per-example clipping, summed and divided by the batch size: the one place of it."""
    return clipping.clipped_grad(
        example_loss,
        l2_clip_norm=clip_norm,
        normalize_by=float(batch_size),
        batch_argnums=(1, 2),
        keep_batch_dim=False,
    )


def noise_stddev(
    task: Task,
    epsilon: float | int = 4.0,
    delta: float | int = 1e-5,
    neighboring_relation: str = "add_or_remove_one",
) -> float:
    """sigma(epsilon, delta) x sensitivity of the clipped mean gradient (doubled for 'replace_one')."""
    epsilon = number("epsilon", epsilon, 0.0, open_low=True)
    delta = number("delta", delta, 0.0, 1.0, open_low=True)
    clip_norm = number("clip_norm", task.clip_norm, 0.0, open_low=True)
    if neighboring_relation not in RELATIONS:
        raise refuse(
            "neighboring_relation", repr(neighboring_relation), f"one of {list(RELATIONS)}"
        )
    gradient = clipped_gradient(clip_norm, task.shards.shape[1])
    sensitivity = gradient.sensitivity(RELATIONS[neighboring_relation])
    return dp_accounting.get_sigma_gaussian(epsilon, delta) * sensitivity


def stack_noising(
    mechanisms: Mapping[str, object], steps: int
) -> Float[np.ndarray, "m steps steps"]:
    """The mechanisms' C^{-1}, checked: horizon, lower triangle, sensitivity 1.

    A mechanism is a (steps, steps) array C^{-1} or an object with a ``noising_matrix``.
    """
    stack = []
    for name, mechanism in mechanisms.items():
        noising = finite_array(name, getattr(mechanism, "noising_matrix", mechanism), 2)
        if noising.shape != (steps, steps):
            raise refuse(name, f"noising matrix {noising.shape}", f"horizon is {steps} steps")
        if np.any(np.triu(noising, 1)) or not np.all(np.diag(noising)):
            raise refuse(name, "a matrix not lower triangular or singular", "pass C^-1")
        strategy = scipy.linalg.solve_triangular(noising, np.eye(steps), lower=True)
        sensitivity = np.linalg.norm(strategy, axis=0).max()
        if abs(sensitivity - 1) > 1e-6:
            raise refuse(name, f"sensitivity {sensitivity:.6g}", "normalise the strategy to 1")
        stack.append(noising)
    if not stack:
        raise refuse("mechanisms", "no mechanism", "pass at least one")
    return np.stack(stack)


def correlated_noise(
    noising: Float[np.ndarray, "m steps steps"], noise_seeds: Sequence[int], stddev: float, dim: int
) -> Float[np.ndarray, "m seeds steps dim"]:
    """z = C^{-1} w with w ~ N(0, stddev^2): w depends on the noise seed only."""
    shape = (noising.shape[-1], dim)
    white = np.stack([_random("noise", seed).normal(size=shape) for seed in noise_seeds])
    return stddev * np.einsum("mts,nsd->mntd", noising, white, optimize=True)


@jax.jit
def _descend(features, labels, noise, learning_rates, momentum, clip_norm):
    """Heavy ball for every run at once; step t takes shard t modulo their number."""
    gradient = jax.vmap(clipped_gradient(clip_norm, labels.shape[1]), (0, None, None))

    def step(state, now):
        theta, buffer = state
        t, rate, z = now
        shard = t % len(labels)
        buffer = momentum * buffer + gradient(theta, features[shard], labels[shard]) + z
        theta = theta - rate * buffer
        return (theta, buffer), theta

    runs, steps, dim = noise.shape
    start = jnp.zeros((runs, dim), noise.dtype)
    schedule = (jnp.arange(steps), learning_rates, jnp.moveaxis(noise, 1, 0))
    path = jax.lax.scan(step, (start, start), schedule)[1]
    return jnp.concatenate([start[:, None], jnp.moveaxis(path, 0, 1)], axis=1)


def train(
    task: Task,
    mechanisms: Mapping[str, object],
    condition: Condition,
    noise_seeds: Sequence[int],
    *,
    epsilon: float | int = 4.0,
    delta: float | int = 1e-5,
    neighboring_relation: str = "add_or_remove_one",
    privacy: bool = True,
    clipped: bool = True,
    sampled: bool = True,
) -> Float[np.ndarray, "m seeds points dim"]:
    """theta_0 .. theta_T of every mechanism and noise seed (points = steps + 1).

    ``privacy``, ``clipped`` and ``sampled`` switch a source off: no noise, no clipping (the noise
    keeps its scale), the whole training set at each step instead of one shard.
    """
    steps, batch = task.shards.shape
    rates = finite_array("learning_rates", condition.learning_rates, 1)
    if len(rates) != steps:
        raise refuse("learning_rates", f"{len(rates)} rates", f"the task has {steps} steps")
    stddev = noise_stddev(task, epsilon, delta, neighboring_relation) if privacy else 0.0
    noising = stack_noising(mechanisms, steps)
    noise = correlated_noise(noising, noise_seeds, stddev, task.features.shape[1])
    order = task.shards if sampled else task.shards.reshape(1, -1)
    with jax.enable_x64(True):
        path = _descend(
            task.features[order],
            task.labels[order],
            noise.reshape(-1, *noise.shape[2:]),
            rates,
            float(condition.momentum),
            task.clip_norm if clipped else np.inf,
        )
        return np.asarray(path).reshape(*noise.shape[:2], steps + 1, -1)


def study(
    task: Task,
    pool: Mapping[str, object] | Callable[[Condition], Mapping[str, object]],
    cases: Mapping[str, Condition],
    noise_seeds: Sequence[int],
    **settings,
) -> pd.DataFrame:
    """One row a run: condition, mechanism, noise_seed, excess (over w*), excess_optimum (nats).

    ``pool`` is a set of mechanisms, or a function of the condition where they depend on it;
    ``settings`` go to `train`.
    """
    frames = []
    for name, condition in cases.items():
        mechanisms = pool(condition) if callable(pool) else pool
        last = train(task, mechanisms, condition, noise_seeds, **settings)[:, :, -1]
        index = pd.MultiIndex.from_product(
            [[name], list(mechanisms), list(noise_seeds)],
            names=["condition", "mechanism", "noise_seed"],
        )
        found = {
            "excess": task.excess(last).ravel(),
            "excess_optimum": task.excess(last, against="optimum").ravel(),
        }
        frames.append(pd.DataFrame(found, index=index).reset_index())
    return pd.concat(frames, ignore_index=True)
