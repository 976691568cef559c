"""Clipping-aware MOMENT-DP: what the optimizer follows is not what the loss is made of.

The optimizer follows the mean of *clipped* per-example gradients. Its Jacobian J carries the noise;
the true Hessian H weighs the loss that the noise causes (theory, "Two curvatures"). J moves along
the trajectory and is not symmetric outside generalised linear models, so nothing is diagonalised
here: one adjoint sweep in dim x dim blocks, exact for the dynamics linearised along a path.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from momentdp._checks import finite_array, number, refuse, symmetric
from momentdp.damage import transferred_variance
from momentdp.dynamics.optimizers import check_rates, system_of
from momentdp.mechanisms.mechanism import check_mechanism

Blocks = Float[np.ndarray, "steps dim dim"]


def clipped_mean_gradient(per_example_gradient, theta, batch, clip_norm):
    """Mean over ``batch`` of g min(1, c / |g|): pure jax, differentiable, zero gradients included.

    ``batch`` is a tuple of arrays with one leading axis of examples; ``per_example_gradient``
    maps (theta, *one example) to an array shaped like theta.
    """

    def clipped(*example):
        gradient = per_example_gradient(theta, *example)
        square = jnp.sum(gradient**2)
        is_clipped = square > clip_norm**2
        # sqrt has no derivative at 0, where nothing is clipped: keep it out of that branch
        norm = jnp.sqrt(jnp.where(is_clipped, square, 1.0))
        return gradient * jnp.where(is_clipped, clip_norm / norm, 1.0)

    return jnp.mean(jax.vmap(clipped)(*batch), axis=0)


_jacobian = partial(jax.jit, static_argnums=0)(jax.jacfwd(clipped_mean_gradient, argnums=1))


@partial(jax.jit, static_argnums=0)
def _walk(per_example_gradient, start, system, batches, clip_norm):
    def step(state, now):
        theta, buffers = state
        (F, f, h, c, d, w), batch = now
        g = clipped_mean_gradient(per_example_gradient, theta, batch, clip_norm)
        moved = theta - c @ buffers - d * g - w * theta
        buffers = F @ buffers + f[:, None] * g + h[:, None] * theta
        return (moved, buffers), (theta, _jacobian(per_example_gradient, theta, batch, clip_norm))

    buffers = jnp.zeros((system.f.shape[1], len(start)))
    (last, _), (path, jacobians) = jax.lax.scan(step, (start, buffers), (system, batches))
    return jnp.concatenate([path, last[None]]), jacobians


def clipped_jacobian(per_example_gradient, theta, batch, clip_norm) -> Float[np.ndarray, "dim dim"]:
    """Jacobian of the clipped mean gradient at ``theta`` (dim,), one Jacobian-vector product a column.

    An unclipped example contributes its Hessian H_i; a clipped one (c / |g|)(I - u u') H_i with
    u = g / |g|, which is zero in a generalised linear model and not symmetric elsewhere.

    Args:
        per_example_gradient: jax function (theta, *one example) -> (dim,), such as ``jax.grad(loss)``.
        theta: (dim,) parameters, flat.
        batch: tuple of arrays with one leading axis of examples.
        clip_norm: positive.

    Raises:
        ValueError: a clip norm that is not positive, theta not finite.
    """
    clip_norm = number("clip_norm", clip_norm, 0.0, open_low=True)
    point = finite_array("theta", theta, 1)
    with jax.enable_x64(True):
        return np.asarray(_jacobian(per_example_gradient, point, tuple(batch), clip_norm))


def clipped_path(
    per_example_gradient, optimizer, learning_rates, start, batches, clip_norm
) -> tuple[Float[np.ndarray, "points dim"], Blocks]:
    """theta_0 .. theta_T without noise, and the clipped mean gradient's Jacobian at each step.

    Args:
        per_example_gradient, clip_norm: as in ``clipped_jacobian``.
        optimizer: Momentum or LinearOptimizer.
        learning_rates: (steps,).
        start: (dim,) theta_0.
        batches: tuple of arrays with leading axes (steps, examples): step t takes row t.

    Raises:
        ValueError: as ``clipped_jacobian``, or batches for another number of steps.
    """
    rates, point = check_rates(learning_rates), finite_array("start", start, 1)
    clip_norm = number("clip_norm", clip_norm, 0.0, open_low=True)
    if any(len(part) != len(rates) for part in batches):
        sizes = ", ".join(str(len(part)) for part in batches)
        raise refuse("batches", f"leading sizes {sizes}", f"pass {len(rates)}, one a step")
    with jax.enable_x64(True):
        found = _walk(per_example_gradient, point, system_of(optimizer, rates), batches, clip_norm)
        return tuple(np.asarray(part) for part in found)


def linearised_transfer(optimizer, jacobians, learning_rates) -> Blocks:
    """G_t = d e_T / d z_t where the gradient has Jacobian J_t at step t.

    ``jacobians`` is (steps, dim, dim), or (dim, dim) for one that stays; ``learning_rates``
    (steps,). The adjoint sweep of ``dynamics.core.transfer`` with matrices for eigenvalues.

    Raises:
        ValueError: shapes that do not match, entries that are not finite.
    """
    rates = check_rates(learning_rates)
    path = finite_array("jacobians", jacobians, 2 if np.ndim(jacobians) == 2 else 3)
    dim = path.shape[-1]
    if path.shape[-2] != dim or (path.ndim == 3 and len(path) != len(rates)):
        mend = f"pass (dim, dim) or ({len(rates)}, dim, dim)"
        raise refuse("jacobians", f"shape {path.shape}", mend)
    path = np.broadcast_to(path, (len(rates), dim, dim))
    F, f, h, c, d, w = (np.asarray(part) for part in system_of(optimizer, rates))
    found = np.empty((len(rates), dim, dim))
    to_error, to_buffers = np.eye(dim), np.zeros((dim, dim, f.shape[1]))
    for t in range(len(rates) - 1, -1, -1):
        found[t] = to_buffers @ f[t] - d[t] * to_error
        from_buffers = to_buffers @ F[t] - to_error[:, :, None] * c[t]
        to_error = to_error + found[t] @ path[t] + to_buffers @ h[t] - w[t] * to_error
        to_buffers = from_buffers
    return found


def _loss_modes(optimizer, jacobians, learning_rates, loss_hessian):
    """Eigenvalues of H (dim,), and G in H's eigenbasis (dim * dim, steps), a mode after another."""
    g = linearised_transfer(optimizer, jacobians, learning_rates)
    values, basis = np.linalg.eigh(symmetric("loss_hessian", loss_hessian, g.shape[-1]))
    return values, np.einsum("ik,tij->kjt", basis, g).reshape(-1, len(g))


def clipping_aware_factor(
    optimizer, jacobians, learning_rates, *, loss_hessian
) -> Float[np.ndarray, "steps rank"]:
    """F with F F' = Q of ``clipping_aware_damage`` = (sigma^2 / 2) tr(K Q): what `solve_p1` designs for.

    The arguments and errors are those of ``clipping_aware_damage``; H has to be positive
    semidefinite.
    """
    values, rows = _loss_modes(optimizer, jacobians, learning_rates, loss_hessian)
    if values[0] < -1e-10 * abs(values[-1]):
        raise refuse("loss_hessian", f"eigenvalue {values[0]:.3g}", "pass a semidefinite one")
    return (np.repeat(np.sqrt(np.maximum(values, 0.0)), len(values))[:, None] * rows).T


def clipping_aware_damage(
    m,
    optimizer,
    jacobians,
    learning_rates,
    *,
    loss_hessian,
    noise_multiplier=1.0,
    min_sep: int | None = None,
    max_participations: int = 1,
) -> float:
    """(sigma^2 / 2) tr(H G (K (x) I) G'): ``damage`` with J_t in the dynamics and H in the loss.

    Args:
        m: Mechanism of horizon ``steps``; its sensitivity enters once.
        optimizer: Momentum or LinearOptimizer.
        jacobians: (steps, dim, dim) along a path (``clipped_path``), or one (dim, dim) that stays
            (``clipped_jacobian``). Not symmetric in general.
        learning_rates: (steps,).
        loss_hessian: (dim, dim) symmetric, the loss's own curvature where the run ends.
        noise_multiplier: sigma; min_sep, max_participations: the participation pattern.

    Raises:
        ValueError: as ``linearised_transfer``, and a horizon or dimension that does not match.
    """
    values, rows = _loss_modes(optimizer, jacobians, learning_rates, loss_hessian)
    check_mechanism("m", m).require_steps(rows.shape[1])
    variances = transferred_variance(m, rows).reshape(len(values), -1).sum(axis=1)
    scale = number("noise_multiplier", noise_multiplier, 0.0)
    scale *= m.sensitivity(min_sep, max_participations)
    return 0.5 * scale**2 * float(values @ variances)
