"""How well a score orders mechanisms, against the true losses. Lower is better in both.

Tie rule, one for all measures: values that differ by at most ``tie_tolerance`` relative to the
larger one are merged into one place (sorted neighbours, so a chain of near-equal values is one
tie). Two mechanisms can be the same to the bit (max- and last-optimised Toeplitz ones are), and
rounding must not decide between them.

``score`` and ``truth`` are sequences in the same order, or pandas Series or dicts, which are then
aligned by name.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float, Int

from momentdp import _checks

Pair = tuple[Float[np.ndarray, " mechanisms"], Float[np.ndarray, " mechanisms"]]


def pairwise_accuracy(score, truth, tie_tolerance: float = 1e-9) -> float:
    """Share of pairs that the score orders as the truth does.

    Pairs tied in the truth are left out; pairs tied in the score only count half.

    Args:
        score, truth: (mechanisms,) values, see the module.
        tie_tolerance: relative, see the module.

    Raises:
        ValueError: names or lengths that differ, entries that are not finite, fewer than two
            mechanisms, or a truth in which all are tied.
    """
    scores, truths = (_places(values, tie_tolerance) for values in _aligned(score, truth))
    first, second = np.triu_indices(len(scores), 1)
    true_order = np.sign(truths[first] - truths[second])
    agreement = true_order * np.sign(scores[first] - scores[second])
    counted = true_order != 0
    if not counted.any():
        raise _checks.refuse("truth", "all values tied", "pass losses that differ")
    return float(np.mean((agreement[counted] + 1) / 2))


def kendall_tau(score, truth, tie_tolerance: float = 1e-9) -> float:
    """Kendall's tau-b (``scipy.stats.kendalltau``) after merging ties.

    Without ties it is ``2 pairwise_accuracy - 1``. Arguments as in :func:`pairwise_accuracy`.

    Raises:
        ValueError: as there, and a score in which all are tied.
    """
    scores, truths = (_places(values, tie_tolerance) for values in _aligned(score, truth))
    for argument, places in (("score", scores), ("truth", truths)):
        if places.max() == 0:
            raise _checks.refuse(argument, "all values tied", "pass values that differ")
    import scipy.stats  # takes half a second: not for everyone who imports the package

    return float(scipy.stats.kendalltau(scores, truths).statistic)


def relative_regret(score, truth, tie_tolerance: float = 1e-9) -> float:
    """Loss of the mechanism that the score selects over the best loss, minus 1.

    Where several are tied for the best score, their mean loss counts (a fair draw among them).
    Arguments as in :func:`pairwise_accuracy`.

    Raises:
        ValueError: as there, and a truth that is not positive.
    """
    values, losses = _aligned(score, truth)
    if losses.min() <= 0:
        raise _checks.refuse("truth", losses.min(), "pass positive losses: regret is relative")
    selected = _places(values, tie_tolerance) == 0
    best = losses[_places(losses, tie_tolerance) == 0].mean()
    return float(losses[selected].mean() / best - 1)


def top1(score, truth, tie_tolerance: float = 1e-9) -> float:
    """1 if the score's best mechanism is a best one in truth, else 0.

    Any of the truly tied best counts; where several are tied for the best score, the share of them
    that is best (a fair draw among them). Arguments and errors as in :func:`pairwise_accuracy`.
    """
    scores, truths = (_places(values, tie_tolerance) for values in _aligned(score, truth))
    return float(np.mean(truths[scores == 0] == 0))


def ranks(values, tie_tolerance: float = 1e-9) -> Int[np.ndarray, " mechanisms"]:
    """Rank of each value, 1 the lowest: one more than the number of values below it, ties merged."""
    places = _places(_checks.finite_array("values", values, 1), tie_tolerance)
    return 1 + np.sum(places[:, None] > places, axis=1)


def _aligned(score, truth) -> Pair:
    """Both as float64 arrays in one order, checked."""
    if isinstance(score, Mapping):
        score = pd.Series(score)
    if isinstance(truth, Mapping):
        truth = pd.Series(truth)
    if isinstance(score, pd.Series) and isinstance(truth, pd.Series):
        repeated = truth.index[truth.index.duplicated()]
        unmatched = score.index.symmetric_difference(truth.index)
        if len(repeated) or len(unmatched) or len(score) != len(truth):
            names = ", ".join(map(str, [*unmatched, *repeated]))
            raise _checks.refuse("score", names, "name each mechanism once in score and in truth")
        truth = truth[score.index]
    values = _checks.finite_array("score", score, 1)
    losses = _checks.finite_array("truth", truth, 1)
    if len(values) != len(losses):
        sizes = f"{len(values)} values for {len(losses)} in truth"
        raise _checks.refuse("score", sizes, "pass one value a mechanism")
    if len(values) < 2:
        raise _checks.refuse("score", "one mechanism", "pass two or more to compare")
    return values, losses


def _places(
    values: Float[np.ndarray, " mechanisms"], tie_tolerance: float
) -> Int[np.ndarray, " mechanisms"]:
    """Place of each value, 0 the lowest; tied values share one."""
    tie_tolerance = _checks.number("tie_tolerance", tie_tolerance, 0.0, 1.0)
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    larger = np.maximum(np.abs(ranked[1:]), np.abs(ranked[:-1]))
    places = np.empty(len(values), dtype=int)
    places[order] = np.r_[0, np.cumsum(np.diff(ranked) > tie_tolerance * larger)]
    return places
