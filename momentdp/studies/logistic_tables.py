"""Table 2 and F.4 as the chapter shows them, and their rows of the ledger."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from momentdp.studies import logistic
from momentdp.studies.crossovers import NOISECURVES
from momentdp.studies.logistic_analysis import kendall, predict, table
from momentdp.studies.logistic_task import Task, make_task

PAPER = ("L0", "L1", "L2", "L3")
OWN = "noisecurve_adam"  # the paper's procedure, which its numbers belong to
SEEDS = range(30)


def means(results: pd.DataFrame, conditions: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean excess and its standard error: mechanisms as rows, the given conditions as columns."""
    found = table(results)
    columns = {c: found.loc[c, ["mean", "se"]] for c in conditions}
    return tuple(
        pd.DataFrame({c: part[statistic] for c, part in columns.items()})
        for statistic in ("mean", "se")
    )


def noisecurve_table(results: pd.DataFrame) -> pd.DataFrame:
    """Table 2 for each NoiseCurve: its rank among the nine, its excess, the best excess, SEs."""
    rows = {}
    for condition in dict.fromkeys(results.condition):
        found = table(results).loc[condition]
        others = found.drop(index=[n for n in NOISECURVES if n in found.index])
        for name in (n for n in NOISECURVES if n in found.index):
            own = found.loc[name]
            best = min(own["mean"], others["mean"].min())
            rows[condition, name] = {
                "rank": 1 + int((others["mean"] < own["mean"]).sum()),
                "excess": own["mean"],
                "se": own["se"],
                "best excess": best,
                "best se": found.loc[found["mean"] == best, "se"].iloc[0],
            }
    index = pd.MultiIndex.from_tuples(rows, names=["condition", "noisecurve"])
    return pd.DataFrame(list(rows.values()), index=index)


def prediction_quality(
    task: Task, mechanisms, conditions, outcome: pd.Series, names: Sequence[str], **accounting
) -> pd.DataFrame:
    """Kendall's tau of each curvature's prediction with the outcome: a row a condition.

    ``outcome``: the mean excess by (condition, mechanism); ``names``: the mechanisms that count.
    """
    pool = {name: mechanisms[name] for name in names}
    rows = {
        name: kendall(predict(task, pool, condition, **accounting), outcome.loc[name])
        for name, condition in conditions.items()
    }
    return pd.DataFrame(rows).T.rename_axis("condition")


def curvature_robustness(predictions: dict[str, pd.DataFrame]) -> dict[str, int]:
    """F.4: conditions in which H_full predicts the same best mechanism, the same whole order."""
    orders = [
        (list(p["calibration"].sort_values().index), list(p["full"].sort_values().index))
        for p in predictions.values()
    ]
    return {
        "logistic.curvature.top1_unchanged": sum(a[0] == b[0] for a, b in orders),
        "logistic.curvature.ranking_unchanged": sum(a == b for a, b in orders),
    }


def ledger_rows(data_seed: int = 0) -> dict[str, object]:
    """Table 2 and F.4 on the book's data set with the paper's own NoiseCurve procedure."""
    task = make_task(data_seed)
    pool = logistic.native_pool(task, pool=(*logistic.NINE, OWN))
    conditions = {name: logistic.conditions(task)[name] for name in PAPER}
    results = logistic.study(task, pool, conditions, SEEDS)
    found, outcome = noisecurve_table(results), table(results)["mean"]
    rows = {}
    predictions = {name: predict(task, pool, c) for name, c in conditions.items()}
    for name, predicted in predictions.items():
        own, tau = found.loc[(name, OWN)], kendall(predicted, outcome.loc[name])
        rows[f"logistic.rank.{name}"] = int(own["rank"])
        rows[f"logistic.noisecurve.{name}"] = own["excess"]
        rows[f"logistic.best.{name}"] = own["best excess"]
        rows[f"logistic.kendall.cal.{name}"] = tau["calibration"]
        rows[f"logistic.kendall.full.{name}"] = tau["full"]
    spectra = [np.linalg.eigvalsh(h) for h in (task.calibration_hessian(), task.hessian())]
    rows["logistic.curvature.max_eig_discrepancy"] = 100 * np.abs(spectra[0] / spectra[1] - 1).max()
    rows["logistic.hessian_weight"] = float(
        np.mean(task.hessian() / (task.features.T @ task.features / len(task.labels)))
    )
    return rows | curvature_robustness(predictions)
