"""Clipping-aware MOMENT-DP: what the optimizer sees is not what the loss is made of.

The optimizer follows the mean of *clipped* per-example gradients. Its Jacobian J drives the noise;
the true Hessian H weighs the loss that the noise causes (theory, "Two curvatures"). J moves along
the trajectory and is not symmetric outside generalised linear models, so nothing is diagonalised
here: one d x d adjoint recursion, exact for the dynamics linearised along a path.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from momentdp._checks import finite_array, number, refuse, symmetric


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
        return gradient * jnp.where(
            is_clipped, clip_norm / jnp.sqrt(jnp.where(is_clipped, square, 1.0)), 1.0
        )

    return jnp.mean(jax.vmap(clipped)(*batch), axis=0)


_jacobian = partial(jax.jit, static_argnums=0)(jax.jacfwd(clipped_mean_gradient, argnums=1))


def clipped_jacobian(
    per_example_gradient, theta, batch, clip_norm: float | int
) -> Float[np.ndarray, "dim dim"]:
    """Jacobian of the clipped mean gradient at ``theta`` (dim,), one column a Jacobian-vector product.

    An unclipped example contributes its Hessian H_i; a clipped one (c / |g|)(I - u u') H_i with
    u = g / |g|, which is zero in a generalised linear model and not symmetric elsewhere.
    Raises ValueError for a clip norm that is not positive.
    """
    number("clip_norm", clip_norm, 0.0, np.inf, open_low=True)
    point = finite_array("theta", theta, 1)
    with jax.enable_x64(True):
        return np.asarray(_jacobian(per_example_gradient, point, tuple(batch), float(clip_norm)))


def linearised_transfer(
    jacobians, learning_rates, momentum: float | int
) -> Float[np.ndarray, "steps dim dim"]:
    """G_t = d e_T / d z_t for heavy ball with the Jacobian J_t at step t.

    ``jacobians`` is (steps, dim, dim), or (dim, dim) for one that stays; ``learning_rates`` is
    (steps,). One backward sweep, the matrix form of theory.md's adjoint recursion.
    Raises ValueError for shapes that do not match, entries that are not finite, momentum outside
    [0, 1).
    """
    rates = finite_array("learning_rates", learning_rates, 1)
    mu = number("momentum", momentum, 0.0, 1.0)
    path = finite_array("jacobians", jacobians, 2 if np.ndim(jacobians) == 2 else 3)
    d = path.shape[-1]
    if path.shape[-2:] != (d, d) or (path.ndim == 3 and len(path) != len(rates)):
        raise refuse(
            "jacobians", f"shape {path.shape}", f"pass (dim, dim) or ({len(rates)}, dim, dim)"
        )
    path = np.broadcast_to(path, (len(rates), d, d))
    transfer = np.empty((len(rates), d, d))
    to_error, to_buffer = np.eye(d), np.zeros((d, d))
    for t in range(len(rates) - 1, -1, -1):
        transfer[t] = to_buffer - rates[t] * to_error
        to_error = to_error + transfer[t] @ path[t]
        to_buffer = mu * transfer[t]
    return transfer


def linearised_damage(
    noising_matrix,
    jacobians,
    hessian,
    learning_rates,
    momentum: float | int,
    noise_stddev: float | int = 1.0,
) -> float:
    """(sigma^2 / 2) tr(H G (K (x) I) G') with K = S S' for the noising matrix S = C^{-1} (steps, steps).

    ``hessian`` (dim, dim), symmetric, is the loss's own curvature where the run ends;
    ``noise_stddev`` is that of w in z = S w. With J = H constant this is `damage`.
    Raises ValueError as `linearised_transfer`, and for a horizon or dimension that does not match.
    """
    transfer = linearised_transfer(jacobians, learning_rates, momentum)
    steps, d, _ = transfer.shape
    weight = symmetric("hessian", hessian, d)
    noising = finite_array("noising_matrix", noising_matrix, 2)
    if noising.shape != (steps, steps):
        raise refuse("noising_matrix", f"shape {noising.shape}", f"pass ({steps}, {steps})")
    reached = np.einsum("tij,ts->sij", transfer, noising, optimize=True)
    quadratic = np.einsum("sij,ik,skj->", reached, weight, reached, optimize=True)
    return float(0.5 * number("noise_stddev", noise_stddev, 0.0) ** 2 * quadratic)
