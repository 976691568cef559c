"""The data set of Appendix F: features, teacher, labels, shards, public calibration split.

Every random source has a seed of its own, so that one can be redrawn and the others kept.
"""

from typing import NamedTuple

import numpy as np
import scipy.optimize
import scipy.special
from jaxtyping import Float, Int

from momentdp._checks import count, refuse

SOURCES = ("features", "teacher", "labels", "split", "calibration", "noise")


def random(source: str, seed: int) -> np.random.Generator:
    sequence = np.random.SeedSequence(count("seed", seed, 0), spawn_key=(SOURCES.index(source),))
    return np.random.default_rng(sequence)


class Task(NamedTuple):
    """One data set. ``clip_norm`` is the median per-example gradient norm at theta_0 = 0 on the
    calibration split; ``optimum`` minimises the training loss."""

    features: Float[np.ndarray, "examples dim"]
    labels: Float[np.ndarray, " examples"]
    teacher: Float[np.ndarray, " dim"]
    shards: Int[np.ndarray, "steps batch"]
    calibration_features: Float[np.ndarray, "calibration dim"]
    calibration_labels: Float[np.ndarray, " calibration"]
    clip_norm: float
    optimum: Float[np.ndarray, " dim"]

    def excess(self, theta, against: str = "teacher") -> Float[np.ndarray, "..."]:
        """Training loss (nats) at ``theta`` (..., dim) minus that at 'teacher' (w*) or 'optimum'."""

        def loss(point):
            margins = np.asarray(point) @ self.features.T
            return np.asarray((np.logaddexp(0.0, margins) - self.labels * margins).mean(axis=-1))

        return np.asarray(loss(theta) - loss(getattr(self, against)))

    def hessian(self, theta=None) -> Float[np.ndarray, "dim dim"]:
        """Hessian of the mean loss on the training set; at 0, the default, H_full of F.4."""
        return _hessian(self.features, theta)

    def calibration_hessian(self, theta=None) -> Float[np.ndarray, "dim dim"]:
        """The same on the calibration split; at 0, the default, H_cal of F.3."""
        return _hessian(self.calibration_features, theta)


def _hessian(x, theta=None):
    p = scipy.special.expit(x @ (np.zeros(x.shape[1]) if theta is None else theta))
    return x.T @ (x * (p * (1 - p))[:, None]) / len(x)


def training_optimum(features, labels) -> Float[np.ndarray, " dim"]:
    """Minimiser of the mean logistic loss; ValueError for separable labels, which have none."""
    x, y = np.asarray(features), np.asarray(labels)
    signed = x * (2 * y - 1)[:, None]
    # Separable iff some theta puts no example on the wrong side and one on the right side.
    found = scipy.optimize.linprog(
        -signed.sum(axis=0),
        A_ub=np.vstack([signed, -signed]),
        b_ub=np.repeat([1.0, 0.0], len(x)),
        bounds=(None, None),
    )
    if found.status != 0 or -found.fun > 1e-7:
        raise refuse("labels", "a separable set", "draw more examples or another seed")

    def gradient(theta):
        return x.T @ (scipy.special.expit(x @ theta) - y) / len(x)

    start = np.zeros(x.shape[1])
    return scipy.optimize.root(gradient, start, jac=lambda t: _hessian(x, t), tol=1e-13).x


def make_task(
    data_seed: int = 0,
    *,
    dimension: int = 16,
    examples: int = 4096,
    batch: int = 32,
    calibration: int = 500,
    teacher_seed: int | None = None,
    label_seed: int | None = None,
    split_seed: int | None = None,
    calibration_seed: int | None = None,
) -> Task:
    """Appendix F.1: x ~ N(0, diag(s)), s = logspace(-2, -1) variances, w* ~ N(0, I/d).

    The examples fall into disjoint shards of ``batch``, one a step. The calibration split is a fresh
    public draw of ``calibration`` examples. The other seeds follow ``data_seed`` unless given.

    Raises:
        ValueError: a batch that does not divide the examples, separable labels.
    """
    d, n, batch = count("dimension", dimension), count("examples", examples), count("batch", batch)
    if n % batch:
        raise refuse("batch", batch, f"pass a divisor of examples = {n}: shards have one size")

    def source(name, seed=None):
        return random(name, data_seed if seed is None else seed)

    spread = np.sqrt(np.logspace(-2, -1, d))
    teacher = source("teacher", teacher_seed).normal(size=d) / np.sqrt(d)
    public = source("calibration", calibration_seed)
    x = source("features").normal(size=(n, d)) * spread
    x_cal = public.normal(size=(count("calibration", calibration), d)) * spread
    y = source("labels", label_seed).uniform(size=n) < scipy.special.expit(x @ teacher)
    y_cal = public.uniform(size=len(x_cal)) < scipy.special.expit(x_cal @ teacher)
    return Task(
        features=x,
        labels=y.astype(np.float64),
        teacher=teacher,
        shards=source("split", split_seed).permutation(n).reshape(-1, batch),
        calibration_features=x_cal,
        calibration_labels=y_cal.astype(np.float64),
        clip_norm=float(np.median(np.linalg.norm(x_cal, axis=1)) / 2),  # |p - y| = 1/2 at 0
        optimum=training_optimum(x, y.astype(np.float64)),
    )
