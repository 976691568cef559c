"""What the chapter on logistic regression shows, and its rows of the ledger.

Frames of outcomes and predictions are indexed by (.., condition, mechanism), as `logistic.study`,
`logistic_study.outcomes` and `logistic_study.predicted` return them.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from momentdp.evaluation import ranking
from momentdp.studies import logistic, logistic_study
from momentdp.studies import logistic_analysis as analysis
from momentdp.studies.crossovers import NOISECURVES
from momentdp.studies.logistic import PAPER, RIVALS
from momentdp.studies.logistic_ranking import OWN, RULE, agreement, broad_ranking, cells
from momentdp.studies.logistic_task import make_task

FIG_1C = {"bandinv_max": "BISR-last; BISR-max", "bandinv_mean": "BISR-mean", "dense": "Dense MF"}
CELL = ["data_seed", "condition"]
MEASURED = ["calibration", "clipped", "public_path", "path", "closure"]


def means(results: pd.DataFrame, conditions: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Mean excess and its standard error: mechanisms as rows, the given conditions as columns."""
    found = analysis.table(results)
    mean, se = (found[part].unstack("condition")[list(conditions)] for part in ("mean", "se"))
    return mean, se


def rank_among(mean: pd.Series, name: str, rivals: Sequence[str] = RIVALS) -> int:
    """Rank of ``name`` among itself and ``rivals``, by mean excess."""
    return int(ranking.ranks(mean[[name, *rivals]])[0])


def noisecurve_table(results: pd.DataFrame, rivals: Sequence[str] = RIVALS) -> pd.DataFrame:
    """Table 2 for each NoiseCurve: rank among the nine, excess, best excess, and the paired
    difference to the best of the others, all with standard errors."""
    rows = {}
    for condition, runs in results.droplevel("condition").groupby(
        results.index.get_level_values("condition"), sort=False
    ):
        mean, se = runs.mean(axis=1), runs.sem(axis=1)
        rival = mean[list(rivals)].idxmin()
        for name in (n for n in NOISECURVES if n in runs.index):
            best = name if mean[name] < mean[rival] else rival
            gap = runs.loc[name] - runs.loc[rival]
            rows[condition, name] = {
                "rank": rank_among(mean, name, rivals),
                "excess": mean[name],
                "se": se[name],
                "best excess": mean[best],
                "best se": se[best],
                "minus best rival": gap.mean(),
                "se of that": gap.sem(),
            }
    index = pd.MultiIndex.from_tuples(rows, names=["condition", "noisecurve"])
    return pd.DataFrame(list(rows.values()), index=index)


def ranks(mean: pd.Series, names: Sequence[str]) -> pd.DataFrame:
    """Rank among the nine of each of ``names`` (columns), by the other levels of ``mean``."""
    cells = mean.unstack("mechanism")
    return pd.DataFrame({n: cells.apply(rank_among, axis=1, name=n) for n in names})


def rank_lists(mean: pd.Series, conditions: Sequence[str]) -> pd.DataFrame:
    """The ranks of each NoiseCurve (columns) in all data sets, as text, a row a condition."""
    found = ranks(mean, NOISECURVES).astype(str)
    return found.groupby("condition", sort=False).agg(" ".join).loc[list(conditions)]


def what_decides(runs: pd.Series, unclipped: pd.Series) -> pd.DataFrame:
    """Share of (data set, schedule) cells in which each NoiseCurve is last of the nine, and its
    mean rank: a row an arm of momentum and step size, with clipping and without."""
    rows = {}
    for text, mean in (("clipped", runs), ("not clipped", unclipped)):
        found = ranks(mean, NOISECURVES)
        of = found.index.get_level_values("condition")
        for arm, mark in (
            ("at home (L0)", None),
            *((f"arm {a}", m) for m, a in logistic.ARMS.items()),
        ):
            cells = ["L0"] if mark is None else [f"L{i}{mark}" for i in (1, 2, 3)]
            part = found[of.isin(cells)]
            last = (100 * (part == 1 + len(RIVALS)).mean()).round().astype(int)
            rows[arm, text] = pd.concat({"last (%)": last, "mean rank": part.mean()})
    return pd.DataFrame(rows).T.rename_axis(["arm", "gradients"])


def regularisation_curve(mean: pd.Series, conditions: Sequence[str]) -> pd.DataFrame:
    """Mean rank over the data sets of NoiseCurve with each eps (rows) by condition (columns)."""
    names = [f"eps={eps:g}" for eps in logistic.EPSILONS]
    found = ranks(mean, names).groupby("condition").mean().T[list(conditions)]
    return found.set_axis(pd.Index(logistic.EPSILONS, name="eps"))


def designs_table(runs: pd.DataFrame, conditions: Sequence[str]) -> pd.DataFrame:
    """Synthesised mechanisms against the best of the catalogue, chosen in hindsight: relative
    difference of the mean excess (%), its SE over the data sets, and in how many of these the
    paired difference is clear (2 SE) for and against the design."""
    rows = {}
    for (seed, condition), own in cells(runs, conditions).items():
        rival = own.loc[own.loc[list(logistic_study.CATALOGUE)].mean(axis=1).idxmin()]
        for name in analysis.DESIGNS:
            gap = own.loc[name] - rival
            clear = np.sign(gap.mean()) * (abs(gap.mean()) > 2 * gap.sem())
            change = 100 * gap.mean() / rival.mean()
            rows[condition, name, seed] = {
                "change (%)": change,
                "better": clear < 0,
                "worse": clear > 0,
            }
    table = pd.DataFrame(rows).T.astype(float).rename_axis(["condition", "design", "data_seed"])
    grouped = table.groupby(["condition", "design"], sort=False)
    found = grouped.mean()[["change (%)"]].assign(se=grouped["change (%)"].sem())
    return found.join(grouped[["better", "worse"]].sum().astype(int)).loc[list(conditions)]


def sources_table(
    runs: pd.DataFrame, quiet: pd.DataFrame, predicted: pd.DataFrame, conditions: Sequence[str]
) -> pd.DataFrame:
    """H.2, mean over the data sets, a row a condition: the parts of the best mechanism's excess, the
    share that is there without privacy noise, and the privacy part over its predictions (median
    over the nine mechanisms)."""
    pool, rows, seen = [OWN, *RIVALS], {}, cells(predicted)
    for cell, own in cells(runs, conditions).items():
        found = analysis.with_sources(quiet.loc[cell].to_dict(), own.loc[pool])
        best = found.loc[found["total"].idxmin()].drop("privacy_se")
        ratios = seen[cell].loc[pool, MEASURED].rdiv(found["privacy"], axis=0).median()
        rest = {"not privacy (%)": 100 * (1 - best["privacy"] / best["total"])}
        rows[cell] = best.to_dict() | rest | ratios.add_prefix("measured / ").to_dict()
    table = pd.DataFrame(rows).T.rename_axis(CELL)
    return table.groupby("condition").mean().loc[list(conditions)]


def winners(mean: pd.Series) -> pd.Series:
    """The best of the nine in each cell, named as in Fig. 1c."""
    best = mean.unstack("mechanism")[[OWN, *RIVALS]].idxmin(axis=1)
    families = {"bandmf": "BandMF", "toeplitz": "Toeplitz", "noisecurve": "NoiseCurve"}
    return best.map(lambda name: FIG_1C.get(name) or families.get(name.split("_")[0], name))


def ledger_rows(data_seed: int = 0) -> dict[str, object]:
    """Table 2, Fig. 1c and F.4 on the book's data set with the paper's own NoiseCurve, run now; F.6
    on the same data set from the records."""
    task, seeds = make_task(data_seed), logistic_study.NOISE_SEEDS
    pool = logistic.native_pool(task, pool=(*RIVALS, OWN))
    cases = {name: logistic.conditions(task)[name] for name in PAPER}
    results = logistic.study(task, pool, cases, seeds)
    found, mean = noisecurve_table(results).xs(OWN, level="noisecurve"), results.mean(axis=1)
    predicted = pd.concat(
        {name: analysis.predict(task, pool, case) for name, case in cases.items()},
        names=["condition", "mechanism"],
    )
    tau, rows = agreement(mean, predicted), {}
    for name in PAPER:
        rows[f"logistic.rank.{name}"] = int(found.loc[name, "rank"])
        rows[f"logistic.noisecurve.{name}"] = found.loc[name, "excess"]
        rows[f"logistic.best.{name}"] = found.loc[name, "best excess"]
        rows[f"logistic.kendall.cal.{name}"] = tau.loc[name, "calibration"]
        rows[f"logistic.kendall.full.{name}"] = tau.loc[name, "full"]
    worst = rows["logistic.rank.L1"]
    rows["logistic.noisecurve_worst.L1"] = f"Rank {worst}" + " (worst)" * (worst == 1 + len(RIVALS))
    rows["logistic.winners"] = "; ".join(sorted(set(winners(mean))))
    spectra = [np.linalg.eigvalsh(h) for h in (task.calibration_hessian(), task.hessian())]
    rows["logistic.curvature.max_eig_discrepancy"] = 100 * np.abs(spectra[0] / spectra[1] - 1).max()
    order = predicted.groupby("condition").rank()
    moved = (order["calibration"] != order["full"]).groupby("condition")
    first = (order["calibration"] == 1) & (order["full"] == 1)
    rows["logistic.curvature.top1_unchanged"] = int(first.groupby("condition").any().sum())
    rows["logistic.curvature.ranking_unchanged"] = int((~moved.any()).sum())
    rows["logistic.hessian_weight"] = float(
        np.mean(task.hessian() / (task.features.T @ task.features / len(task.labels)))
    )
    one = [
        frame.loc[[data_seed]] for frame in (logistic_study.outcomes(), logistic_study.predicted())
    ]
    broad = broad_ranking(*one).loc[RULE]
    rows["logistic.resolved_pairs"] = int(broad["resolved pairs"].iloc[0])
    for text, name in (("static", "static"), ("momentdp", "calibration")):
        for measure in ("accuracy", "regret", "top-1"):
            label = {"accuracy": "pairwise", "top-1": "top1"}.get(measure, measure)
            rows[f"logistic.{label}.{text}"] = broad.loc[name, f"{measure} (%)"]
    return rows
