"""The pure-jax core: traceable, differentiable, vectorised over Hessian eigenmodes.

Every optimizer here acts on each coordinate by the same linear map, so in eigenmode k it is

    g_t     = k e_t + z_t                                (gradient with privacy noise)
    x_{t+1} = F_t x_t + f_t g_t + h_t theta_t            (its buffers, n numbers)
    e_{t+1} = e_t - (c_t x_t + d_t g_t + w_t theta_t)    (its update, theta = e + theta*)

All public evaluators call these functions in float64 and return NumPy arrays; call them yourself
(inside ``jax.enable_x64(True)``) to differentiate or to batch.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

AnyArray = Array | np.ndarray


class LinearSystem(NamedTuple):
    """The optimizer's coefficients at each step (NumPy or jax); n is the number of its buffers."""

    F: Float[AnyArray, "steps n n"]
    f: Float[AnyArray, "steps n"]
    h: Float[AnyArray, "steps n"]
    c: Float[AnyArray, "steps n"]
    d: Float[AnyArray, " steps"]
    w: Float[AnyArray, " steps"]


def momentum_system(
    learning_rates, momentum, nesterov: bool, dampening, weight_decay
) -> LinearSystem:
    """Paper eq. 2, v <- mu v + (1 - dampening) g, with the variants of optax.trace and torch.

    Heavy ball steps by -eta v_{t+1}, Nesterov by -eta (g + mu v_{t+1}). Plain arithmetic on
    (steps,) rates, so that NumPy rates give NumPy coefficients and jax rates traceable ones.
    """
    ones = 0 * learning_rates + 1
    gain = (1 - dampening) * ones
    d = learning_rates * (1 + momentum * gain if nesterov else gain)
    c = learning_rates * (momentum**2 if nesterov else momentum)
    F, f = (momentum * ones)[:, None, None], gain[:, None]
    return LinearSystem(F, f, weight_decay * f, c[:, None], d, weight_decay * d)


@jax.jit
def transfer(
    system: LinearSystem, eigenvalues: Float[AnyArray, " modes"]
) -> Float[Array, "modes steps"]:
    """g_i[t] = d e_T / d z_t in each mode, by one adjoint sweep (paper A.1, Proposition 1)."""

    def backward(adjoint, step):
        p_e, p_x = adjoint
        F, f, h, c, d, w = step
        q = p_x @ f - d * p_e
        return (p_e + eigenvalues * q + p_x @ h - w * p_e, p_x @ F - p_e[:, None] * c), q

    ones = jnp.ones_like(eigenvalues)
    start = (ones, jnp.zeros((len(eigenvalues), system.f.shape[1]), ones.dtype))
    return jax.lax.scan(backward, start, system, reverse=True)[1].T


@partial(jax.jit, static_argnums=(1, 2))
def momentum_transfer(
    run: Float[AnyArray, " _"], steps: int, nesterov: bool
) -> Float[Array, "modes steps"]:
    """``transfer`` of ``momentum_system``, whose constants need not be read at each step.

    ``run`` is learning rates (steps,), momentum, dampening, weight decay, eigenvalues (modes,):
    one array, since handing over each array costs as much as the sweep.
    """
    rates, (mu, dampening, weight_decay) = run[:steps], run[steps : steps + 3]
    pull, gain = run[steps + 3 :] + weight_decay, 1 - dampening
    direct, carried = (1 + mu * gain, mu**2) if nesterov else (gain, mu)

    def backward(adjoint, rate):
        p_e, p_v = adjoint
        q = gain * p_v - rate * direct * p_e
        return (p_e + pull * q, mu * p_v - rate * carried * p_e), q

    ones = jnp.ones_like(pull)
    return jax.lax.scan(backward, (ones, 0 * ones), rates, reverse=True)[1].T


@jax.jit
def response(
    system: LinearSystem,
    eigenvalues: Float[AnyArray, " modes"],
    noise: Float[AnyArray, "steps columns"],
    initial_error: Float[AnyArray, " modes"],
    optimum: Float[AnyArray, " modes"],
) -> Float[Array, "steps columns modes"]:
    """e_{t+1} for every t, each noise column in each mode, from e_0 = initial_error.

    ``optimum`` is theta*, which what depends on the parameters themselves (weight decay) adds.
    """

    def forward(state, step):
        e, x = state
        (F, f, h, c, d, w), z = step
        g = eigenvalues * e + z[:, None]
        parameters = e + optimum
        x_next = x @ F.T + g[..., None] * f + parameters[..., None] * h
        e = e - (x @ c + d * g + w * parameters)
        return (e, x_next), e

    e0 = jnp.broadcast_to(initial_error, (noise.shape[1], len(eigenvalues)))
    x0 = jnp.zeros((*e0.shape, system.f.shape[1]), e0.dtype)
    return jax.lax.scan(forward, (e0, x0), (system, noise))[1]


@jax.jit
def dense_damage(
    g: Float[AnyArray, "modes steps"],
    weights: Float[AnyArray, " modes"],
    noising_matrix: Float[AnyArray, "steps steps"],
) -> Float[Array, ""]:
    """1/2 sum_i weights_i |C^-T g_i|^2 for a dense C^-1: differentiable in all arguments."""
    return 0.5 * jnp.sum(weights * jnp.sum((g @ noising_matrix) ** 2, axis=1))
