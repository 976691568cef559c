"""Scores on the controlled grid (paper 3.1, Table 3): who orders mechanisms how well, and by what.

The conditions that the paper's 30 are read as: five momenta, three schedules, condition numbers 10
and 100, eta lambda_max 0.4. Scores are those of ``momentdp.evaluation.scores``, for all conditions
at once.
"""

from itertools import product
from math import factorial
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp.damage import workload_matrix
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation import ranking
from momentdp.evaluation.scores import STABLE_EL
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies.crossovers import (
    MOMENTA,
    batched_damages,
    condition,
    with_library_dense,
)

SCHEDULES, KAPPAS = ("constant", "cosine", "warmup_cosine"), (10.0, 100.0)
EL, WARMUP, STEPS = 0.4, 8, 128
TEN = ("iid", "dense", "bandmf_mean", "bandmf_max", "toeplitz_mean", "toeplitz_max")
TEN += ("bandinv_mean", "bandinv_max")
# The two readings of "learning-rate-aware MF" and of the warmup that come closest to the paper.
READINGS = {"root": ("lr_aware_sqrt", WARMUP), "Toeplitz": ("lr_aware_toeplitz", 13)}
MEASURES = {
    "pairwise": ranking.pairwise_accuracy,
    "kendall": ranking.kendall_tau,
    "regret": ranking.relative_regret,
    "top1": ranking.top1,
}
# What a score knows beside the workload: S the schedule, M the momentum, C the curvature.
KNOWS = {
    "static": "",
    "lr_aware": "S",
    "momentum_only": "M",
    "momentum_workload": "SM",
    "noisecurve": "C",
    "curv_sched_mu0": "SC",
    "curv_momentum": "MC",
    "momentdp": "SMC",
}
FIXED_MOMENTUM = 0.9
# As a reader sees them; the last two know momentum only as a longer step, or only as 0.9.
LABELS = {
    "static": "static MeanSE",
    "lr_aware": "LR-aware MF: schedule",
    "momentum_only": "momentum",
    "momentum_workload": "momentum, schedule",
    "noisecurve": "NoiseCurve: curvature",
    "curv_sched_mu0": "curvature, schedule",
    "curv_momentum": "curvature, momentum",
    "momentdp": "MOMENT-DP: all three",
    "effective_lr": "curvature, schedule, effective step",
    "fixed_momentum": "curvature, schedule, momentum 0.9",
}


class Condition(NamedTuple):
    """What one optimizer does: momentum, (steps,) rates, (d,) eigenvalues."""

    momentum: float
    rates: Float[np.ndarray, " steps"]
    eigenvalues: Float[np.ndarray, " d"]

    def forced(self, knows: str) -> "Condition":
        """As a score sees it that does not know the momentum (0), the schedule (its peak)."""
        peak = np.full(len(self.rates), self.rates.max())
        momentum = self.momentum if "M" in knows else 0.0
        return self._replace(momentum=momentum, rates=self.rates if "S" in knows else peak)

    def longer(self, cap: float) -> "Condition":
        """No momentum, and each rate divided by 1 - mu, eta lambda_max at most ``cap``."""
        rates = np.minimum(self.rates / (1 - self.momentum), cap / self.eigenvalues.max())
        return self._replace(momentum=0.0, rates=rates)


def rates(family: str, peak: float, warmup: int = WARMUP) -> Float[np.ndarray, " steps"]:
    """A schedule of the book, its warmup of another length if it has one."""
    options = {"warmup_steps": warmup} if family.startswith("warmup") else {}
    return schedules.FAMILIES[family](STEPS, peak, **options)


def conditions(
    momenta=MOMENTA, families=SCHEDULES, kappas=KAPPAS, el=EL, warmup=WARMUP, arm="a"
) -> dict[tuple, Condition]:
    """(momentum, schedule, kappa) -> Condition, every combination, in an arm."""
    found = {}
    for mu, family, kappa in product(momenta, families, kappas):
        momentum, peak = condition(arm, mu, el)
        eigenvalues = spectra.log_spaced(16, kappa).eigenvalues
        found[mu, family, kappa] = Condition(momentum, rates(family, peak, warmup), eigenvalues)
    return found


def ten(lr_aware="lr_aware_sqrt", family="cosine", warmup=WARMUP) -> dict:
    """The ten mechanisms of Table 3 as they are read here: dense as jax-privacy makes it, no
    NoiseCurve, BISR-max and BISR-last both (they are one), and a reading of LR-aware MF."""
    shape = rates(family, 1.0, warmup)
    pool = with_library_dense(catalogue(STEPS, pool=[*TEN, lr_aware], learning_rates=shape))
    pool["lr_aware"] = pool.pop(lr_aware)
    return pool | {"bandinv_last": pool["bandinv_max"]}


def workload_errors(mechanisms: dict, settings) -> Float[np.ndarray, "conditions mechanisms"]:
    """Mean squared error of the workload that each Condition is without curvature."""
    inverses = [m.noising_matrix for m in mechanisms.values()]
    rows, known = [], {}
    for c in settings:
        key = c.momentum, c.rates.tobytes()
        if key not in known:
            workload = workload_matrix(Momentum(c.momentum), c.rates)
            known[key] = [np.square(workload @ inverse).sum() / STEPS for inverse in inverses]
        rows.append(known[key])
    return np.array(rows)


def scores(
    mechanisms: dict, settings: dict[tuple, Condition], cap: float = STABLE_EL
) -> dict[str, pd.DataFrame]:
    """Each score, the truth ``momentdp`` among them: conditions (rows) x mechanisms.

    ``cap`` bounds eta lambda_max of ``effective_lr``'s step: above 2 plain SGD diverges.
    """
    true, found = list(settings.values()), {}
    for name, knows in KNOWS.items():
        evaluate = batched_damages if "C" in knows else workload_errors
        found[name] = evaluate(mechanisms, [c.forced(knows) for c in true])
    found["effective_lr"] = batched_damages(mechanisms, [c.longer(cap) for c in true])
    fixed = [c._replace(momentum=FIXED_MOMENTUM) for c in true]
    found["fixed_momentum"] = batched_damages(mechanisms, fixed)
    index = pd.MultiIndex.from_tuples(settings, names=["momentum", "schedule", "kappa"])
    return {name: pd.DataFrame(v, index, list(mechanisms)) for name, v in found.items()}


def grid_scores(
    lr_aware="lr_aware_sqrt", warmup=WARMUP, change=dict, cap=STABLE_EL, families=SCHEDULES, **axes
) -> dict[str, pd.DataFrame]:
    """``scores`` of Table 3's mechanisms, LR-aware MF made anew for each schedule.

    ``change``: dict of mechanisms -> the dict to use; ``axes``: those of ``conditions``.
    """
    parts = []
    for family in families:
        settings = conditions(families=(family,), warmup=warmup, **axes)
        parts.append(scores(change(ten(lr_aware, family, warmup)), settings, cap))
    return {name: pd.concat([part[name] for part in parts]) for name in parts[0]}


def agreement(tables: dict[str, pd.DataFrame], measures=tuple(MEASURES)) -> pd.DataFrame:
    """Measures of Table 3, means over the conditions (columns), of each score (rows)."""
    true = tables["momentdp"].to_numpy()
    rows = {name: list(zip(t.to_numpy(), true, strict=True)) for name, t in tables.items()}
    means = {
        m: {n: np.mean([MEASURES[m](*row) for row in r]) for n, r in rows.items()} for m in measures
    }
    return pd.DataFrame(means)


def with_doubles(pairwise, mechanisms: int = 10):
    """Pairwise accuracy if the pair that is one mechanism twice counts as ordered rightly."""
    pairs = mechanisms * (mechanisms - 1) // 2
    return (pairwise * (pairs - 1) + 1) / pairs


def shares(value: pd.Series) -> pd.Series:
    """What each piece of knowledge adds to a measure, from ``static`` to ``momentdp``: its gain
    averaged over all orders in which the three can be learnt (the Shapley value), so that the three
    add up to the whole gain."""
    by_knowledge = {frozenset(knows): value[name] for name, knows in KNOWS.items()}
    names = {"S": "schedule", "M": "momentum", "C": "curvature"}
    found = dict.fromkeys(names.values(), 0.0)
    for piece, name in names.items():
        for known in filter(lambda k: piece not in k, by_knowledge):
            weight = factorial(len(known)) * factorial(2 - len(known)) / factorial(3)
            found[name] += weight * (by_knowledge[known | {piece}] - by_knowledge[known])
    return pd.Series(found)
