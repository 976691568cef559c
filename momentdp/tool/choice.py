"""Everything the report shows about a run: ranking, robustness, the way there, expected loss."""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from momentdp._checks import refuse
from momentdp.damage import expected_loss
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation.rank import calibration, rank, ratio
from momentdp.evaluation.ranking import ranks
from momentdp.mechanisms.catalogue import MEMBERS, catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.synthesis.problem import progress
from momentdp.tool import designs, sweep
from momentdp.tool.run import LONG, Run

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
    is_curved = run.spectrum.largest > 0  # designs for a loss without curvature do not exist
    is_momentum = isinstance(run.optimizer, Momentum)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # passing instability: noted in the run
        pool = catalogue(
            run.steps,
            bands=run.bands,
            learning_rates=run.learning_rates,
            spectrum=run.spectrum if is_curved else None,
            momentum=run.optimizer.momentum if is_momentum else None,
            pool=[n for n in run.pool if is_curved or "spectrum" not in MEMBERS[n][0]],
        )
        made = designs.for_run(run) if is_curved else {}
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
            {name: sweep.damages(pool, factor, stddev) for name, factor in sweep.perturbed(run)}
        ).loc[table.index]
        trajectory = _trajectory(table["damage"], sweep.on_the_way(pool, run, stddev))
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


def _calibrated(pool: Mapping, run: Run) -> pd.DataFrame:
    try:
        return calibration(
            pool, run.epsilon, run.delta, run.clipping, run.participation, run.sampling
        )
    except MemoryError:
        mend = "its sensitivity needs a (steps, steps) matrix there: name others under mechanisms"
        raise refuse("participation", f"repeated at {run.steps} steps", mend) from None


def _relative(columns: Mapping[str, pd.Series]) -> pd.DataFrame:
    table = pd.DataFrame(columns).rename_axis("mechanism")
    return table.apply(lambda one: pd.Series(ratio(one.to_numpy(), one.min()), one.index))


def _trajectory(final: pd.Series, way: pd.Series) -> pd.DataFrame:
    way = way[final.index]
    return _relative({"final": final, "on the way": way, "both": np.sqrt(final * way)})


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
        factor = sweep.compressed_factor(optimizer, run.spectrum, rates)
        if factor is None:
            continue
        start = {"initial_error": run.initial_error, "optimum": run.optimum}
        bias = expected_loss(
            tried[names[0]], optimizer, run.spectrum, rates, noise_multiplier=0.0, **start
        )
        for name, value in sweep.damages(tried, factor, stddev).items():
            rows.append(
                (name, np.nan if mu is None else mu, scale, rates.max(), bias, value, bias + value)
            )
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
