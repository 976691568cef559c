"""Final excess with noise, clipping and curvature drift, without a single noise draw.

Clipping makes the mean path depend on the noise: noise moves margins in and out of the clipped
range. Suppose theta_t ~ N(m_t, P_t). Each logistic gradient is its features times a function of
the margin x'theta alone, and the margin is N(x'm, x'Px): a one-dimensional quadrature gives the
expected clipped gradient, which moves m, and the expected Jacobian, which moves P (stochastic
linearisation; by Stein's lemma the best linear map under that Gaussian). Nothing else is assumed.
"""

import numpy as np
import scipy.special
from jaxtyping import Float

from momentdp.studies.logistic import Condition, noise_stddev
from momentdp.studies.logistic_task import Task

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def _margins(x, mean, covariance):
    """Quadrature nodes of x'theta, theta ~ N(mean, covariance): (examples, nodes)."""
    variance = np.einsum("ni,ij,nj->n", x, covariance, x, optimize=True)
    return (x @ mean)[:, None] + np.sqrt(np.maximum(variance, 0.0))[:, None] * NODES


def closed_moments(
    task: Task, m, condition: Condition, noise_stddev: float
) -> tuple[Float[np.ndarray, " dim"], Float[np.ndarray, "dim dim"]]:
    """(mean, covariance) of theta_T under ``m``'s noise, whose w has ``noise_stddev``.

    Any Momentum or LinearOptimizer; ValueError where horizons do not match.
    """
    steps, dim = len(task.shards), task.features.shape[1]
    noising = m.require_steps(steps).noising_matrix * m.sensitivity() * noise_stddev
    F, f, h, c, d, w = (np.asarray(a) for a in condition.optimizer.system(condition.learning_rates))
    mean, mean_buffers = np.zeros(dim), np.zeros((f.shape[1], dim))
    # derivatives with respect to every w_s: (dim, steps x dim), and the same for each buffer
    theta, buffers = np.zeros((dim, steps * dim)), np.zeros((f.shape[1], dim, steps * dim))
    for t, shard in enumerate(task.shards):
        x, y = task.features[shard], task.labels[shard, None]
        reached, others = theta[:, : dim * (t + 1)], buffers[..., : dim * (t + 1)]  # w_0 .. w_t
        p = scipy.special.expit(_margins(x, mean, reached @ reached.T))
        bound = (task.clip_norm / np.linalg.norm(x, axis=1))[:, None]
        slope = np.where(np.abs(p - y) <= bound, p * (1 - p), 0.0) @ WEIGHTS
        gradient = x.T @ (np.clip(p - y, -bound, bound) @ WEIGHTS) / len(x)
        moved = (x.T @ (x * slope[:, None]) / len(x)) @ reached
        moved += np.kron(noising[t, : t + 1], np.eye(dim))
        mean, mean_buffers = (
            mean - c[t] @ mean_buffers - d[t] * gradient - w[t] * mean,
            F[t] @ mean_buffers + np.outer(f[t], gradient) + np.outer(h[t], mean),
        )
        reached[:], others[:] = (
            reached - np.tensordot(c[t], others, 1) - d[t] * moved - w[t] * reached,
            np.tensordot(F[t], others, 1)
            + np.multiply.outer(f[t], moved)
            + np.multiply.outer(h[t], reached),
        )
    return mean, theta @ theta.T


def closed_excess(task: Task, m, condition: Condition, **accounting) -> float:
    """Expected final excess over w* (nats) under the closure; ``accounting``: `noise_stddev`'s."""
    moments = closed_moments(task, m, condition, noise_stddev(task, **accounting))
    margins = _margins(task.features, *moments)
    loss = np.logaddexp(0.0, margins) - task.labels[:, None] * margins
    start = np.zeros_like(task.teacher)
    return float((loss @ WEIGHTS).mean() - np.log(2) + task.excess(start))
