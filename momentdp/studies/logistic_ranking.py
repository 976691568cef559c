"""How well predictions order the outcomes of private logistic regression (F.4, F.6).

Frames of outcomes and predictions are indexed by (.., condition, mechanism), as `logistic.study`,
`logistic_study.outcomes` and `logistic_study.predicted` return them.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from momentdp.evaluation import ranking
from momentdp.studies.logistic import NINE_CONDITIONS, PAPER, RIVALS

OWN = "noisecurve_adam"  # the paper's procedure, which its numbers belong to
# F.6 does not say which: pairs told apart seed by seed or by two separate errors, iid in or out.
DECLARED = ("paired", "without iid")  # before a result was seen: Table 2 pairs its nine
RULE = ("unpaired", "without iid")  # of the four the one with about as many resolved pairs as F.6


def cells(frame: pd.DataFrame | pd.Series, conditions: Sequence[str] | None = None) -> dict:
    """The part of each (data set and) condition, indexed by mechanism."""
    levels = [name for name in frame.index.names if name != "mechanism"]
    if conditions is not None:
        frame = frame[frame.index.get_level_values("condition").isin(conditions)]
    groups = frame.groupby(levels if len(levels) > 1 else levels[0], sort=False)
    return {cell: part.droplevel(levels) for cell, part in groups}


def pairs(runs: pd.DataFrame, *, paired: bool = True) -> pd.DataFrame:
    """Every pair a, b of the rows of ``runs`` (mechanisms, noise seeds): mean of a - b, its SE (of
    seed-wise differences if ``paired``), and whether it is resolved: |a - b| > 2 SE."""
    first, second = np.triu_indices(len(runs), 1)
    values, se = runs.to_numpy(), runs.sem(axis=1).to_numpy()
    gaps = pd.DataFrame(values[first] - values[second])
    difference = gaps.mean(axis=1)
    error = gaps.sem(axis=1) if paired else np.hypot(se[first], se[second])
    names = {"a": runs.index[first], "b": runs.index[second]}
    resolved = difference.abs() > 2 * error
    return pd.DataFrame({**names, "difference": difference, "se": error, "resolved": resolved})


def agreement(
    mean: pd.Series, predicted: pd.DataFrame, noisecurve: str = OWN, rivals=RIVALS
) -> pd.DataFrame:
    """Kendall's tau of each predictor (columns) with the outcome among the nine, by the cells of
    ``mean`` that have predictions (rows)."""
    pool, seen = [noisecurve, *rivals], cells(predicted)
    found = {
        cell: seen[cell].loc[pool].apply(ranking.kendall_tau, truth=own[pool])
        for cell, own in cells(mean).items()
        if cell in seen
    }
    return pd.DataFrame(found).T.rename_axis(predicted.index.names[:-1])


def agreement_steps(runs: pd.Series, mirrored: pd.Series, predicted: pd.DataFrame, noisecurve=OWN):
    """Mean Kendall's tau over L0 to L3 and the data sets of each predictor (rows), with the order of
    the 30 seeds and with that of the mirrored runs; with standard errors over the data sets, of tau
    and of what it gains over H_cal's. Then the lowest mean over one data set, and in how many cells
    it is below that of H_cal."""
    paper = predicted[predicted.index.get_level_values("condition").isin(PAPER)]
    columns = {}
    for name, mean in {"30 seeds": runs, "mirrored": mirrored}.items():
        every = agreement(mean, paper, noisecurve)
        found = every.groupby("data_seed").mean()
        gain = found.sub(found["calibration"], axis=0)
        columns |= {
            name: found.mean(),
            f"se, {name}": found.sem(),
            f"se of gain, {name}": gain.sem(),
        }
    columns["lowest data set"] = found.min()
    columns["cells below H_cal"] = every.lt(every["calibration"] - 1e-9, axis=0).sum()
    return pd.DataFrame(columns).rename_axis("predictor")


def curvature_table(predicted: pd.DataFrame, noisecurve: str = OWN) -> pd.DataFrame:
    """H_cal against H_full (F.4), a row a data set: in how many of L0 to L3 the best of the nine stays
    the best, and in how many all nine keep their places."""
    rows = {}
    for cell, seen in cells(predicted, list(PAPER)).items():
        order = seen.loc[[noisecurve, *RIVALS], ["calibration", "full"]].rank()
        same = order["calibration"] == order["full"]
        best = order["calibration"] == 1
        rows[cell] = {"top1_unchanged": same[best].all(), "ranking_unchanged": same.all()}
    found = pd.DataFrame(rows).T.rename_axis(["data_seed", "condition"])
    return found.groupby("data_seed").sum().astype(int)


def broad_ranking(
    runs: pd.DataFrame, predicted: pd.DataFrame, above_optimum, noisecurve: str = OWN
) -> pd.DataFrame:
    """F.6 over the nine conditions, pooled over the data sets that are there: a row a reading of
    "resolved" and predictor. How many pairs are resolved and which part of them are NoiseCurve's, accuracy on them, mean tau, mean relative regret, top-1.

    Regret is relative to the excess over the training optimum, since that over w* can be negative;
    ``above_optimum``: how far w* is above it, by data seed.
    """
    seen, rows = cells(predicted), {}
    for (seed, condition), own in cells(runs, NINE_CONDITIONS).items():
        for extra in ("without iid", "with iid"):
            pool = [noisecurve, *RIVALS, *["iid"] * (extra == "with iid")]
            scores, truth = seen[seed, condition].loc[pool], own.loc[pool].mean(axis=1)
            columns, losses = scores.to_numpy().T, truth.to_numpy()
            above = losses + above_optimum[seed]
            measures = {
                "tau": [ranking.kendall_tau(column, losses) for column in columns],
                "regret (%)": [100 * ranking.relative_regret(c, above) for c in columns],
                "top-1 (%)": [100 * ranking.top1(column, losses) for column in columns],
            }
            for rule in ("paired", "unpaired"):
                found = pairs(own.loc[pool], paired=rule == "paired")
                found = found[found["resolved"]]
                first = scores.loc[found["a"]].to_numpy() < scores.loc[found["b"]].to_numpy()
                right = (first == (found["difference"] < 0).to_numpy()[:, None]).sum(axis=0)
                of_noisecurve = int((found[["a", "b"]] == noisecurve).any(axis=1).sum())
                counted = {"resolved pairs": len(found), "right": right, "own": of_noisecurve}
                rows[rule, extra, seed, condition] = pd.DataFrame(
                    counted | measures, scores.columns
                )
    table = pd.concat(rows, names=["rule", "pool", "data_seed", "condition", "predictor"])
    grouped = table.groupby(["rule", "pool", "predictor"])
    total, mean = grouped.sum(), grouped.mean()
    mean["resolved pairs"] = total["resolved pairs"].astype(int)
    mean.insert(1, "NoiseCurve's (%)", 100 * total["own"] / total["resolved pairs"])
    mean.insert(2, "accuracy (%)", 100 * total["right"] / total["resolved pairs"])
    return mean.drop(columns=["right", "own"])


def frozen_table(frozen: pd.DataFrame) -> pd.DataFrame:
    """The registry's pairs in logistic regression: in how many data sets the difference is resolved
    (2 SE) at mu = 0 and at the momentum, resolved with opposite signs, and, of those resolved at the
    momentum, predicted by MOMENT-DP with H_cal and by the closure."""
    resolved = frozen["difference"].abs() > 2 * frozen["se"]
    home, tested = (frozen.xs(end, level="end") for end in ("native_rates", "rates"))
    clear = {end: resolved.xs(end, level="end") for end in ("native_rates", "rates")}
    both = clear["native_rates"] & clear["rates"]
    columns = {
        "resolved at mu = 0": clear["native_rates"],
        "resolved at the momentum": clear["rates"],
        "reversed": both & (home["difference"] * tested["difference"] < 0),
    }
    for name, text in (("calibration", "predicted, H_cal"), ("closure", "predicted, closure")):
        columns[text] = clear["rates"] & (tested[name] * tested["difference"] > 0)
    return pd.DataFrame(columns).groupby("case").sum()
