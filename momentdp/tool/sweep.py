"""The damage of a pool at many settings: one factor of Q a setting, one solve a mechanism."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp.damage import loss_weights, quadratic_factor, transferred_variance
from momentdp.dynamics import core
from momentdp.dynamics.optimizers import Momentum
from momentdp.synthesis.problem import progress
from momentdp.tool.run import LONG, Run

CHECKPOINTS = 16  # steps at which the damage on the way is evaluated; half of them in long runs


def damages(
    mechanisms: Mapping, factor: Float[np.ndarray, "steps rank"] | None, stddev: pd.Series
) -> pd.Series:
    """Damage of each mechanism for Q = F F', its white noise of this standard deviation."""
    if factor is None:
        return pd.Series(np.nan, index=stddev.index)
    rows = np.ascontiguousarray(factor.T)
    return pd.Series(
        {
            name: 0.5 * stddev[name] ** 2 * float(transferred_variance(m, rows).sum())
            for name, m in mechanisms.items()
        }
    )


def compressed_factor(optimizer, spectrum, rates) -> Float[np.ndarray, "steps rank"] | None:
    """F with F F' = Q of D_dyn, of as few columns as matter to 1e-8; None at an unstable rate."""
    try:
        F = quadratic_factor(optimizer, spectrum, rates)
    except ValueError:
        return None
    return compressed(F) if np.all(np.isfinite(F)) else None


def compressed(F: Float[np.ndarray, "steps modes"]) -> Float[np.ndarray, "steps rank"]:
    if F.shape[1] >= F.shape[0]:
        return F
    vectors, s, _ = np.linalg.svd(F, full_matrices=False)
    return (vectors * s)[:, s >= 1e-8 * s[0]]


def perturbed(run: Run) -> Iterator[tuple[str, np.ndarray | None]]:
    """The run itself, then curvature and momentum off by a factor two."""
    rates = run.learning_rates
    yield "as given", compressed_factor(run.optimizer, run.spectrum, rates)
    for name, factor in (("curvature x 2", 2.0), ("curvature / 2", 0.5)):
        yield name, compressed_factor(run.optimizer, run.spectrum.scaled(factor), rates)
    if isinstance(run.optimizer, Momentum):
        # Half and twice the distance from one: 0.9 becomes 0.95 and 0.8.
        mu = run.optimizer.momentum
        for name, other in (("more momentum", (1 + mu) / 2), ("less momentum", 2 * mu - 1)):
            if other != mu and mu > 0 or other > mu:
                optimizer = replace(run.optimizer, momentum=max(other, 0.0))
                yield (
                    f"{name} ({max(other, 0.0):g})",
                    compressed_factor(optimizer, run.spectrum, rates),
                )


def on_the_way(pool: Mapping, run: Run, stddev: pd.Series) -> pd.Series:
    """The damage on the way at evenly spread steps: the transfer of a run that stands still there."""
    number = min(CHECKPOINTS if run.steps <= LONG else CHECKPOINTS // 2, run.steps)
    at = np.ceil((np.arange(number) + 0.5) * run.steps / number).astype(int)
    total = pd.Series(0.0, index=stddev.index)
    weights = np.sqrt(loss_weights(run.spectrum))[:, None]
    system = run.optimizer.system(run.learning_rates)
    for place, steps in enumerate(at):
        progress(f"damage on the way, step {steps} of {run.steps} ({place + 1} of {number})")
        moves = np.arange(run.steps) < steps
        stopped = system._replace(
            c=system.c * moves[:, None], d=system.d * moves, w=system.w * moves
        )
        with jax.enable_x64(True):
            g = np.array(core.transfer(stopped, run.spectrum.eigenvalues))
        total += damages(pool, compressed((weights * g).T), stddev) / number
    return total
