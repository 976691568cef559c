"""Clipping-aware MOMENT-DP: what the optimizer follows is not what the loss is made of.

The optimizer follows the mean of *clipped* per-example gradients. Its Jacobian J carries the noise;
the true Hessian H weighs the loss that the noise causes (theory, "Two curvatures"). J moves along
the trajectory and is not symmetric outside generalised linear models, so nothing is diagonalised
here: one adjoint sweep in d x d blocks, exact for the dynamics linearised along a path.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from momentdp._checks import finite_array, number, refuse, symmetric
from momentdp.dynamics.optimizers import check_rates


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


def clipped_jacobian(per_example_gradient, theta, batch, clip_norm) -> Float[np.ndarray, "dim dim"]:
    """Jacobian of the clipped mean gradient at ``theta`` (dim,), one Jacobian-vector product a column.

    An unclipped example contributes its Hessian H_i; a clipped one (c / |g|)(I - u u') H_i with
    u = g / |g|, which is zero in a generalised linear model and not symmetric elsewhere. The other
    arguments are those of ``clipped_mean_gradient``.

    Raises:
        ValueError: a clip norm that is not positive, theta not finite.
    """
    clip_norm = number("clip_norm", clip_norm, 0.0, open_low=True)
    point = finite_array("theta", theta, 1)
    with jax.enable_x64(True):
        return np.asarray(_jacobian(per_example_gradient, point, tuple(batch), clip_norm))


def linearised_transfer(optimizer, jacobians, learning_rates) -> Float[np.ndarray, "steps dim dim"]:
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
    F, f, h, c, d, w = (np.asarray(part) for part in optimizer.system(rates))
    found = np.empty((len(rates), dim, dim))
    to_error, to_buffers = np.eye(dim), np.zeros((dim, dim, f.shape[1]))
    for t in range(len(rates) - 1, -1, -1):
        found[t] = to_buffers @ f[t] - d[t] * to_error
        from_buffers = to_buffers @ F[t] - to_error[:, :, None] * c[t]
        to_error = to_error + found[t] @ path[t] + to_buffers @ h[t] - w[t] * to_error
        to_buffers = from_buffers
    return found


def clipping_aware_damage(
    m, optimizer, jacobians, learning_rates, *, loss_hessian, noise_multiplier=1.0
) -> float:
    """(sigma^2 / 2) tr(H G (K (x) I) G'): ``damage`` with J_t in the dynamics and H in the loss.

    Args:
        m: Mechanism of horizon ``steps``; its single-participation sensitivity enters once.
        optimizer: Momentum or LinearOptimizer.
        jacobians: (steps, dim, dim) along the path, or (dim, dim); see ``clipped_jacobian``.
        learning_rates: (steps,).
        loss_hessian: (dim, dim) symmetric, the loss's own curvature where the run ends.
        noise_multiplier: sigma.

    Raises:
        ValueError: as ``linearised_transfer``, and a horizon or dimension that does not match.
    """
    g = linearised_transfer(optimizer, jacobians, learning_rates)
    steps, dim, _ = g.shape
    hessian = symmetric("loss_hessian", loss_hessian, dim)
    half = m.require_steps(steps).structure.solve_transposed(g.reshape(steps, -1).T)
    reached = half.reshape(dim, dim * steps)
    scale = number("noise_multiplier", noise_multiplier, 0.0) * m.sensitivity()
    return 0.5 * scale**2 * float(np.sum(reached * (hessian @ reached)))
