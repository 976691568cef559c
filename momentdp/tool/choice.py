"""Everything the report shows about a run: ranking, robustness, the way there, expected loss."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp._checks import refuse
from momentdp.damage import expected_loss, quadratic_factor, transferred_variance
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation.rank import calibration, rank, ratio
from momentdp.evaluation.ranking import ranks
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.synthesis.problem import progress
from momentdp.tool import designs
from momentdp.tool.run import LONG, Run

CHECKPOINTS = 16  # steps at which the damage on the way is evaluated
DISAGREE = 1.25  # damage on the way over the pool's best from which on the choice is warned of
ORDER_LOST = 1.05  # damage over the best, inputs off, from which on the same
MOMENTA = (0.0, 0.5, 0.9, 0.95)
RATE_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)


@dataclass(frozen=True)
class Choice:
    """The tables of the report; ``recommendation`` puts them in words (``tool.words``).

    Attributes:
        best: name of the mechanism of least damage.
        ranking: the table of ``rank`` with noise_memory (vectors of the model's size that a
            generator keeps), worst_relative and worst_rank (over ``robustness``), gap (of a
            synthesised one, over its class; NaN where unknown), noise_stddev.
        robustness: damage relative to the best, at home and where curvature or momentum is off;
            an empty column's setting is unstable.
        trajectory: damage at the end, its mean on the way (over steps that are spread evenly) and
            the geometric mean of the two, each relative to the best.
        expected: one row a mechanism and pair of momentum and rate: learning_rate (peak), bias,
            damage, expected_loss; empty without ``start``.
        warnings: what disagrees.
    """

    run: Run
    mechanisms: Mapping[str, Mechanism]
    ranking: pd.DataFrame
    robustness: pd.DataFrame
    trajectory: pd.DataFrame
    expected: pd.DataFrame
    amplified: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def best(self) -> str:
        return str(self.ranking.index[0])

    @property
    def streaming(self) -> str:
        """The best of those that keep no more vectors than the run's bands."""
        few = self.ranking["noise_memory"] < self.run.bands
        return str(self.ranking.index[few][0]) if few.any() else self.best


def choose(run: Run) -> Choice:
    """Rank the catalogue, the user's strategies and designs made for the run, and check the order.

    Takes seconds where the constructions are cached; progress is shown on a terminal.

    Raises:
        ValueError: a strategy that the participation of this run cannot be calibrated for.
    """
    case = run.optimizer, run.spectrum, run.learning_rates
    is_momentum = isinstance(run.optimizer, Momentum)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # passing instability: noted in the run
        pool = catalogue(
            run.steps,
            bands=run.bands,
            learning_rates=run.learning_rates,
            spectrum=run.spectrum if run.spectrum.largest > 0 else None,
            momentum=run.optimizer.momentum if is_momentum else None,
            pool=[n for n in run.pool if run.spectrum.largest > 0 or n != "noisecurve"],
        )
        made = designs.for_run(run) if run.spectrum.largest > 0 else {}
        pool |= run.strategies | {name: design.mechanism for name, design in made.items()}
        progress(f"ranking {len(pool)} mechanisms")
        privacy = _calibrated(pool, run)
        options = run.clipping | run.participation
        table = rank(
            pool,
            *case,
            epsilon=run.epsilon,
            delta=run.delta,
            sampling=run.sampling,
            **options,
        )
        stddev = privacy["noise_stddev"]
        robustness = _relative(
            {name: damages(pool, factor, stddev) for name, factor in _perturbed(run)}
        ).loc[table.index]
        trajectory = _trajectory(pool, run, stddev, table["damage"])
        expected = _expected(pool, run, stddev, table.index)
        progress("")
    table["noise_memory"] = [pool[name].buffers for name in table.index]
    table["worst_relative"] = robustness.max(axis=1)
    table["worst_rank"] = robustness.dropna(axis=1).apply(ranks).max(axis=1)
    table["gap"] = pd.Series({name: design.gap for name, design in made.items()}, dtype=float)
    table["noise_stddev"] = stddev
    amplified = tuple(privacy.index[privacy["amplified"]])
    found = Choice(run, pool, table, robustness, trajectory, expected, amplified, ())
    return replace(found, warnings=tuple(_disagreements(found)))


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
    if not np.all(np.isfinite(F)) or F.shape[1] >= F.shape[0]:
        return F if np.all(np.isfinite(F)) else None
    vectors, s, _ = np.linalg.svd(F, full_matrices=False)
    return (vectors * s)[:, s >= 1e-8 * s[0]]


def _calibrated(pool: Mapping, run: Run) -> pd.DataFrame:
    try:
        return calibration(
            pool, run.epsilon, run.delta, run.clipping, run.participation, run.sampling
        )
    except MemoryError:
        mend = "its sensitivity needs a (steps, steps) matrix there: name others under mechanisms"
        raise refuse("participation", f"repeated at {run.steps} steps", mend) from None


def _perturbed(run: Run) -> Iterator[tuple[str, np.ndarray | None]]:
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


def _relative(columns: Mapping[str, pd.Series]) -> pd.DataFrame:
    table = pd.DataFrame(columns).rename_axis("mechanism")
    return table.apply(lambda one: pd.Series(ratio(one.to_numpy(), one.min()), one.index))


def _trajectory(pool, run, stddev, final) -> pd.DataFrame:
    """The damage on the way at evenly spread steps: the same transfers, for a run that ends there."""
    number = min(CHECKPOINTS if run.steps <= LONG else CHECKPOINTS // 2, run.steps)
    at = np.ceil((np.arange(number) + 0.5) * run.steps / number).astype(int)
    total = pd.Series(0.0, index=stddev.index)
    for place, steps in enumerate(at):
        progress(f"damage on the way, step {steps} of {run.steps} ({place + 1} of {number})")
        rates = run.learning_rates[:steps]
        if rates.max() > 0:
            F = quadratic_factor(run.optimizer, run.spectrum, rates, allow_unstable=True)
            padded = np.pad(F, ((0, run.steps - steps), (0, 0)))
            total += damages(pool, padded, stddev) / number
    both = np.sqrt(final * total)
    columns = {"final": final, "on the way": total, "both": both}
    return _relative(columns).loc[final.index]


def _expected(pool, run, stddev, order) -> pd.DataFrame:
    """Bias + damage over a grid; a pair that is unstable at a constant rate is left out."""
    if run.initial_error is None:
        return pd.DataFrame()
    is_long = run.steps > LONG
    factors = run.grid.get("learning_rate_factor", RATE_FACTORS[1:4] if is_long else RATE_FACTORS)
    factors = sorted({1.0, *map(float, factors)})
    momenta = [None]
    if isinstance(run.optimizer, Momentum):
        wanted = run.grid.get("momentum", () if is_long else MOMENTA)
        momenta = sorted({0.0, run.optimizer.momentum, *map(float, wanted)})
    names = list(dict.fromkeys([*order[:3], "iid"])) if is_long else list(order)
    tried = {name: pool[name] for name in names if name in pool}
    rows = []
    for number, (mu, scale) in enumerate((mu, s) for mu in momenta for s in factors):
        progress(f"expected loss, pair {number + 1} of {len(momenta) * len(factors)}")
        optimizer = run.optimizer if mu is None else replace(run.optimizer, momentum=mu)
        rates = scale * run.learning_rates
        factor = compressed_factor(optimizer, run.spectrum, rates)
        if factor is None:
            continue
        start = {"initial_error": run.initial_error, "optimum": run.optimum}
        bias = expected_loss(
            tried[names[0]], optimizer, run.spectrum, rates, noise_multiplier=0.0, **start
        )
        for name, value in damages(tried, factor, stddev).items():
            rows.append((name, mu, scale, rates.max(), bias, value, bias + value))
    columns = ["mechanism", "momentum", "factor", "learning_rate"]
    table = pd.DataFrame(rows, columns=[*columns, "bias", "damage", "expected_loss"])
    return table[np.isfinite(table["expected_loss"])]


def _disagreements(found: Choice) -> Iterator[str]:
    way, best = found.trajectory, found.best
    other = str(way["on the way"].idxmin())
    if way.loc[best, "on the way"] > DISAGREE:
        both = str(way["both"].idxmin())
        yield (
            f"{best} is best at the last step, but on the way its damage is "
            f"{way.loc[best, 'on the way']:.3g} times that of {other}. It cancels noise along a "
            f"curvature that has to hold until the end; {both} is the best of both together."
        )
    if found.ranking.loc[best, "worst_relative"] > ORDER_LOST:
        worst = str(found.robustness.loc[best].idxmax())
        leader = str(found.robustness[worst].idxmin())
        yield (
            f"The order does not survive every error of the inputs: with {worst} {leader} leads, "
            f"and {best} has {found.robustness.loc[best, worst]:.3g} times its damage."
        )
