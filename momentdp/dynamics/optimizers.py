"""Optimizers as linear systems: Momentum in closed form, any linear optax code by linearisation."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from momentdp._checks import finite_array, number, refuse
from momentdp.dynamics import core

_WIDTH = 3  # coordinates probed at once: shows updates that mix coordinates (global-norm clipping)


@dataclass(frozen=True)
class Momentum:
    """SGD with momentum: v <- mu v + (1 - dampening) g, theta <- theta - eta v (paper eq. 2).

    Args:
        momentum: mu in [0, 1).
        nesterov: step along g + mu v instead of v (optax.trace's and torch's convention).
        dampening: in [0, 1), from the first step on (torch leaves the first step undamped);
            refused together with Nesterov, as torch does.
        weight_decay: coupled L2 decay, added to the gradient: it drives the dynamics and is not
            part of the loss.

    Raises:
        ValueError: a value outside its range.
    """

    momentum: float = 0.9
    nesterov: bool = False
    dampening: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self):
        number("momentum", self.momentum, 0.0, 1.0)
        number("dampening", self.dampening, 0.0, 1.0)
        number("weight_decay", self.weight_decay, 0.0)
        if not isinstance(self.nesterov, (bool, np.bool_)):
            raise refuse("nesterov", repr(self.nesterov), "pass True or False")
        if self.nesterov and self.dampening:
            raise refuse("dampening", self.dampening, "pass 0 with nesterov=True")

    def system(self, learning_rates) -> core.LinearSystem:
        """Its coefficients at each of the (steps,) learning rates."""
        rates = check_rates(learning_rates)
        return core.momentum_system(
            rates, self.momentum, self.nesterov, self.dampening, self.weight_decay
        )


@dataclass(frozen=True)
class LinearOptimizer:
    """A linear optimizer given by optax code; its coefficients come from linearising that code."""

    factory: Callable

    @classmethod
    def from_optax(cls, factory: Callable) -> "LinearOptimizer":
        """``factory``: learning-rate schedule -> optax.GradientTransformation.

        Example: ``LinearOptimizer.from_optax(lambda rate: optax.sgd(rate, momentum=0.9))``.
        A transformation that is not affine (Adam, clipping) or that mixes coordinates is refused
        when its coefficients are first needed.
        """
        return cls(factory)

    def system(self, learning_rates) -> core.LinearSystem:
        """Its coefficients at each of the (steps,) learning rates.

        Raises:
            ValueError: the update is not an affine map of gradient, parameters and state.
        """
        return _known_system(self.factory, check_rates(learning_rates).tobytes())


def check_rates(learning_rates) -> np.ndarray:
    """(steps,) float64 rates; refuses negative ones and all-zero runs."""
    rates = finite_array("learning_rates", learning_rates, 1)
    if rates.min() < 0 or rates.max() == 0:
        raise refuse("learning_rates", f"from {rates.min():g} to {rates.max():g}", "pass rates > 0")
    return rates


@lru_cache(maxsize=32)
def _known_system(factory, rates: bytes) -> core.LinearSystem:
    """Kept: linearising compiles the optax code, and a pool is evaluated on one run."""
    with jax.enable_x64(True):
        return _linearise(factory, jnp.asarray(np.frombuffer(rates)))


def _linearise(factory, rates) -> core.LinearSystem:
    """Jacobians of one optax step at every count, with a check that the step is affine."""
    transformation = factory(lambda count: rates[jnp.minimum(count, len(rates) - 1)])
    state = transformation.init(jnp.zeros(_WIDTH))
    leaves, tree = jax.tree.flatten(state)
    is_buffer = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]
    shapes = {leaf.shape for leaf, keep in zip(leaves, is_buffer, strict=True) if keep}
    if not shapes <= {(_WIDTH,)}:
        raise refuse("factory", f"state of shapes {shapes}", "pass an optimizer with plain buffers")
    n = sum(is_buffer)

    def advance(counters, inputs):
        """inputs (n + 2, width): buffers, gradient, parameters -> outputs (n + 1, width)."""
        buffers, others = iter(inputs[:n]), iter(counters)
        mixed = [next(buffers) if keep else next(others) for keep in is_buffer]
        update, after = transformation.update(
            inputs[n], jax.tree.unflatten(tree, mixed), inputs[n + 1]
        )
        after = jax.tree.leaves(after)
        kept = [leaf for leaf, keep in zip(after, is_buffer, strict=True) if keep]
        rest = [leaf for leaf, keep in zip(after, is_buffer, strict=True) if not keep]
        return jnp.stack([*kept, update]), rest

    probes = jax.random.normal(jax.random.key(0), (3, n + 2, _WIDTH)) * jnp.array(
        [1.0, 1e-6, 1e8]
    ).reshape(3, 1, 1)
    zero = jnp.zeros((n + 2, _WIDTH))

    def one_step(counters, _):
        at_zero, following = advance(counters, zero)
        jacobian = jax.jacfwd(lambda inputs: advance(counters, inputs)[0])(probes[0])
        own = jnp.einsum("aibi->abi", jacobian)
        shared = own.mean(axis=2)
        errors = jnp.stack(
            [
                jnp.abs(advance(counters, probe)[0] - at_zero - shared @ probe).max()
                / jnp.abs(probe).max()
                for probe in probes
            ]
        )
        return following, (shared, errors.max(), jnp.abs(shared).max())

    counters = [leaf for leaf, keep in zip(leaves, is_buffer, strict=True) if not keep]
    _, (maps, errors, sizes) = jax.lax.scan(one_step, counters, None, length=len(rates))
    relative = errors / (1 + sizes)
    worst = float(jnp.where(jnp.isnan(relative), jnp.inf, relative).max())
    if not worst < 1e-9:
        raise refuse(
            "factory",
            f"an update that is not an affine map (off by {worst:.2g})",
            "pass a linear optimizer; the exact evaluator does not cover Adam or clipping",
        )
    update, buffers = -maps[:, n], maps[:, :n]
    return core.LinearSystem(
        F=buffers[:, :, :n],
        f=buffers[:, :, n],
        h=buffers[:, :, n + 1],
        c=update[:, :n],
        d=update[:, n],
        w=update[:, n + 1],
    )


def system_of(optimizer, learning_rates) -> core.LinearSystem:
    """The coefficients of an optimizer at (steps,) rates; ValueError for anything else."""
    if not isinstance(optimizer, (Momentum, LinearOptimizer)):
        mend = "pass Momentum(0.9), or LinearOptimizer.from_optax(...) for linear optax code"
        raise refuse("optimizer", repr(optimizer), mend)
    return optimizer.system(learning_rates)
