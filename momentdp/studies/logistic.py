"""Section 3.3 and Appendix F: private logistic regression, clipped example by example.

A noise seed draws the same w for every mechanism and condition (paired runs); the mechanism turns
it into z = C^{-1} w. Which runs there are stands here; the data set is `logistic_task`'s.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax_privacy import clipping
from jaxtyping import Float

from momentdp import privacy
from momentdp._checks import number, refuse
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies.crossovers import NOISECURVES
from momentdp.studies.logistic_task import Task, random


class Condition(NamedTuple):
    """An optimizer (Momentum or LinearOptimizer) and its learning rates (steps,)."""

    optimizer: object
    learning_rates: Float[np.ndarray, " steps"]


def conditions(task: Task, *, el=0.1, momentum=0.9, warmup_steps: int = 8) -> dict[str, Condition]:
    """L0 to L3 of Appendix F.5, and L1' to L3', which hold eta / (1 - mu) at L0's eta.

    ``el`` is the peak rate x lambda_max(H_cal). L0 has no momentum and a constant rate; 1, 2, 3
    have ``momentum`` with constant, cosine and warmup-cosine rates.
    """
    steps, heavy_ball = len(task.shards), Momentum(momentum)
    peak = number("el", el, 0.0, open_low=True)
    peak /= np.linalg.eigvalsh(task.calibration_hessian())[-1]
    found = {"L0": Condition(Momentum(0.0), schedules.constant(steps, peak))}
    for mark, rate in (("", peak), ("'", peak * (1 - momentum))):
        warmed = schedules.warmup_cosine(steps, rate, warmup_steps=warmup_steps)
        found[f"L1{mark}"] = Condition(heavy_ball, schedules.constant(steps, rate))
        found[f"L2{mark}"] = Condition(heavy_ball, schedules.cosine(steps, rate))
        found[f"L3{mark}"] = Condition(heavy_ball, warmed)
    return found


def noise_stddev(
    task: Task, epsilon=4.0, delta=1e-5, neighboring_relation: str = "add_or_remove_one"
) -> float:
    """Of w, in units of the gradient: the clipped mean over a shard moves by clip / batch."""
    return privacy.noise_stddev(
        epsilon,
        delta,
        l2_clip_norm=task.clip_norm,
        normalize_by=task.shards.shape[1],
        neighboring_relation=neighboring_relation,
    )


def correlated_noise(
    mechanisms: Mapping[str, object],
    noise_seeds: Sequence[int],
    stddev: float,
    dim: int,
    steps: int,
) -> Float[np.ndarray, "mechanisms seeds steps dim"]:
    """z = sensitivity x C^{-1} w, w ~ N(0, stddev^2); w depends on the noise seed only."""
    if not mechanisms:
        raise refuse("mechanisms", "none", "pass at least one")
    white = np.stack([random("noise", seed).normal(size=(steps, dim)) for seed in noise_seeds])
    shaping = np.stack(
        [m.require_steps(steps).noising_matrix * m.sensitivity() for m in mechanisms.values()]
    )
    return stddev * np.einsum("mts,nsd->mntd", shaping, white, optimize=True)


def example_loss(theta, features, label):
    """log(1 + e^m) - y m with margin m = x'theta: the loss of one example, y in {0, 1}."""
    margin = features @ theta
    return jnp.logaddexp(0.0, margin) - label * margin


def clipped_gradient(clip_norm, batch_size: int) -> clipping.BoundedSensitivityCallable:
    """jax-privacy's sum of clipped per-example gradients over the batch size: (theta, x, y)."""
    return clipping.clipped_grad(
        example_loss,
        l2_clip_norm=clip_norm,
        normalize_by=float(batch_size),
        batch_argnums=(1, 2),
        keep_batch_dim=False,
    )


@jax.jit
def _descend(features, labels, noise, system, clip_norm):
    """The optimizer for every run at once; step t takes shard t modulo their number."""
    gradient = jax.vmap(clipped_gradient(clip_norm, labels.shape[1]), (0, None, None))

    def step(state, now):
        theta, buffers = state
        t, (F, f, h, c, d, w), z = now
        shard = t % len(labels)
        g = gradient(theta, features[shard], labels[shard]) + z
        update = buffers @ c + d * g + w * theta
        buffers = buffers @ F.T + g[..., None] * f + theta[..., None] * h
        return (theta - update, buffers), theta - update

    runs, steps, dim = noise.shape
    start = jnp.zeros((runs, dim)), jnp.zeros((runs, dim, system.f.shape[1]))
    path = jax.lax.scan(step, start, (jnp.arange(steps), system, jnp.moveaxis(noise, 1, 0)))[1]
    return jnp.concatenate([start[0][:, None], jnp.moveaxis(path, 0, 1)], axis=1)


def train(
    task: Task,
    mechanisms: Mapping[str, object],
    condition: Condition,
    noise_seeds: Sequence[int],
    *,
    private: bool = True,
    clipped: bool = True,
    sampled: bool = True,
    **accounting,
) -> Float[np.ndarray, "mechanisms seeds points dim"]:
    """theta_0 = 0 to theta_T (points = steps + 1) of every Mechanism and noise seed.

    ``private``, ``clipped`` and ``sampled`` switch a source off: no noise, no clipping (the noise
    keeps its scale), the whole training set at each step instead of one shard. ``accounting``
    goes to `noise_stddev`.
    """
    steps, dim = len(task.shards), task.features.shape[1]
    stddev = noise_stddev(task, **accounting)
    noise = correlated_noise(mechanisms, noise_seeds, stddev if private else 0.0, dim, steps)
    system = condition.optimizer.system(condition.learning_rates)
    if len(system.d) != steps:
        raise refuse("learning_rates", f"{len(system.d)} rates", f"pass {steps}, one a shard")
    order = task.shards if sampled else task.shards.reshape(1, -1)
    clip_norm = task.clip_norm if clipped else np.inf
    runs = noise.reshape(-1, steps, dim)
    with jax.enable_x64(True):
        path = _descend(task.features[order], task.labels[order], runs, system, clip_norm)
        return np.asarray(path).reshape(*noise.shape[:2], steps + 1, dim)


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
        frame = pd.DataFrame({"excess": task.excess(last).ravel()}, index=index)
        frame["excess_optimum"] = task.excess(last, against="optimum").ravel()
        frames.append(frame.reset_index())
    return pd.concat(frames, ignore_index=True)


NINE = (
    "dense",
    "bandmf_mean",
    "bandmf_max",
    "toeplitz_mean",
    "toeplitz_max",
    "bandinv_mean",
    "bandinv_max",
    "lr_aware_sqrt",
)  # with one NoiseCurve the nine of Table 2


def native_pool(
    task: Task, *, el: float = 0.1, bands: int = 16, pool=(*NINE, *NOISECURVES)
) -> dict[str, Mechanism]:
    """The contestants, every NoiseCurve optimised where it is at home: L0's rate, H_cal."""
    spectrum = spectra.from_matrix(task.calibration_hessian())
    rates = schedules.constant(len(task.shards), el / spectrum.largest)
    return catalogue(
        len(task.shards), bands=bands, learning_rates=rates, spectrum=spectrum, pool=pool
    )
