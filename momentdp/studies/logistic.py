"""Section 3.3 and Appendix F: private logistic regression, clipped example by example.

A noise seed draws the same w for every mechanism and condition (paired runs); the mechanism turns
it into z = C^{-1} w. Which runs there are stands here; the data set is `logistic_task`'s.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from jax_privacy import clipping
from jaxtyping import Float

from momentdp import privacy
from momentdp._checks import number, refuse
from momentdp.damage import quadratic_factor
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies.crossovers import NOISECURVES
from momentdp.studies.crossovers import condition as arm_condition
from momentdp.studies.logistic_task import Task, random
from momentdp.synthesize import solve_p1


class Condition(NamedTuple):
    """An optimizer (Momentum or LinearOptimizer) and its learning rates (steps,)."""

    optimizer: object
    learning_rates: Float[np.ndarray, " steps"]


SCHEDULES = ("constant", "cosine", "warmup_cosine")
ARMS = {"": "a", "'": "b", "''": "c"}  # mark of a condition -> arm of the chapter on crossovers
PAPER = ("L0", "L1", "L2", "L3")  # F.5
PRIMED = ("L1'", "L2'", "L3'")


def conditions(task: Task, *, el=0.1, momentum=0.9, warmup_steps: int = 8) -> dict[str, Condition]:
    """Every condition of the study by name; ``el`` is L0's eta x lambda_max(H_cal).

    L0 has no momentum and a constant rate; L1, L2, L3 have ``momentum`` with constant, cosine and
    warmup-cosine rates (F.5). L1' to L3' hold eta / (1 - mu) at L0's eta; L1'' to L3'' have no
    momentum and eta / (1 - mu) for a rate. Named by momentum and schedule: what F.5 lacks of the
    nine conditions {0, 0.5, ``momentum``} x three schedules.
    """
    steps, largest = len(task.shards), np.linalg.eigvalsh(task.calibration_hessian())[-1]

    def case(schedule, mu, size):
        options = {"warmup_steps": warmup_steps} if schedule == "warmup_cosine" else {}
        return Condition(
            Momentum(mu), schedules.FAMILIES[schedule](steps, size / largest, **options)
        )

    found = {"L0": case("constant", 0.0, number("el", el, 0.0, open_low=True))}
    for mark, arm in ARMS.items():
        for place, schedule in enumerate(SCHEDULES, start=1):
            found[f"L{place}{mark}"] = case(schedule, *arm_condition(arm, momentum, el))
    for mu in (0.0, 0.5):
        others = SCHEDULES if mu else SCHEDULES[1:]
        found |= {f"mu={mu:g} {schedule}": case(schedule, mu, el) for schedule in others}
    return found


NINE_CONDITIONS = (
    *PAPER,
    *(f"mu=0 {s}" for s in SCHEDULES[1:]),
    *(f"mu=0.5 {s}" for s in SCHEDULES),
)


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
    mirrored: bool = False,
    **accounting,
) -> Float[np.ndarray, "mechanisms seeds points dim"]:
    """theta_0 = 0 to theta_T (points = steps + 1) of every Mechanism and noise seed.

    ``private``, ``clipped`` and ``sampled`` switch a source off: no noise, no clipping (the noise
    keeps its scale), the whole training set at each step instead of one shard. ``mirrored``: minus
    the noise of the seed; the mean with the plain run has no error of first order in the noise.
    ``accounting`` goes to `noise_stddev`.
    """
    steps, dim = len(task.shards), task.features.shape[1]
    stddev = noise_stddev(task, **accounting)
    scale = (-stddev if mirrored else stddev) * private
    noise = correlated_noise(mechanisms, noise_seeds, scale, dim, steps)
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
    mechanisms: Mapping[str, object],
    cases: Mapping[str, Condition],
    noise_seeds: Sequence[int],
    **settings,
) -> pd.DataFrame:
    """Final excess over w* (nats): a row a (condition, mechanism), a column a noise seed.

    ``settings`` go to `train`. Against the training optimum every excess is larger by one number,
    ``task.excess(w*, against="optimum")``.
    """
    frames = {}
    for name, condition in cases.items():
        last = train(task, mechanisms, condition, noise_seeds, **settings)[:, :, -1]
        frames[name] = pd.DataFrame(
            task.excess(last),
            index=pd.Index(mechanisms, name="mechanism"),
            columns=pd.Index(noise_seeds, name="noise_seed"),
        )
    return pd.concat(frames, names=["condition"])


RIVALS = (
    "dense",
    "bandmf_mean",
    "bandmf_max",
    "toeplitz_mean",
    "toeplitz_max",
    "bandinv_mean",
    "bandinv_max",
    "lr_aware_sqrt",
)  # with one NoiseCurve the nine of Table 2
EPSILONS = tuple(float(f"{10**power:.3g}") for power in np.arange(-6, -0.9, 0.5))


def native_pool(
    task: Task, *, el: float = 0.1, bands: int = 16, pool=(*RIVALS, *NOISECURVES)
) -> dict[str, Mechanism]:
    """The contestants, every NoiseCurve optimised where it is at home: L0's rate, H_cal."""
    spectrum = spectra.from_matrix(task.calibration_hessian())
    rates = schedules.constant(len(task.shards), el / spectrum.largest)
    return catalogue(
        len(task.shards), bands=bands, learning_rates=rates, spectrum=spectrum, pool=pool
    )


def regularised(
    task: Task, epsilons: Sequence[float] = EPSILONS, *, el: float = 0.1, bands: int = 16
) -> dict[str, Mechanism]:
    """NoiseCurve's problem at home with each regularisation: "eps=0.01" and so on."""
    spectrum = spectra.from_matrix(task.calibration_hessian())
    rates = schedules.constant(len(task.shards), el / spectrum.largest)
    factor = quadratic_factor(Momentum(0.0), spectrum, rates)
    return {
        f"eps={eps:g}": solve_p1(factor=factor, bands=bands, regularisation=eps).mechanism
        for eps in epsilons
    }
