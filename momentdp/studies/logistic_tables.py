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
from momentdp.studies.logistic_ranking import (
    OWN,
    RULE,
    agreement,
    broad_ranking,
    cells,
    curvature_table,
    frozen_table,
)
from momentdp.studies.logistic_task import make_task

FIG_1C = {"bandinv_max": "BISR-last; BISR-max", "bandinv_mean": "BISR-mean", "dense": "Dense MF"}
FIG_1C["lr_aware_sqrt"] = "LR-aware MF"
CELL = ["data_seed", "condition"]
PLACES = {  # (optimizer, rate) -> its conditions
    ("no momentum", "constant"): ["L0"],
    ("no momentum", "decaying"): ["mu=0 cosine", "mu=0 warmup_cosine"],
    **{
        (text, rate): [f"L{i}{mark}" for i in places]
        for mark, text in (
            ("", "momentum (arm a)"),
            ("'", "momentum, equal step (arm b)"),
            ("''", "no momentum, larger step (arm c)"),
        )
        for rate, places in (("constant", (1,)), ("decaying", (2, 3)))
    },
}
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


def ranks(mean: pd.Series, names: Sequence[str], rivals: Sequence[str] = RIVALS) -> pd.DataFrame:
    """Rank of each of ``names`` (columns) among itself and ``rivals``, by the other levels."""
    cells, given = mean.unstack("mechanism"), {"rivals": rivals}
    return pd.DataFrame({n: cells.apply(rank_among, axis=1, name=n, **given) for n in names})


def rank_lists(
    mean: pd.Series, conditions: Sequence[str], rivals: Sequence[str] = RIVALS
) -> pd.DataFrame:
    """The ranks of each NoiseCurve (columns) in all data sets, as text, a row a condition."""
    found = ranks(mean, NOISECURVES, rivals).astype(str)
    return found.groupby("condition", sort=False).agg(" ".join).loc[list(conditions)]


def what_decides(runs: pd.Series, unclipped: pd.Series) -> pd.DataFrame:
    """Mean rank of each NoiseCurve over the data sets, with the gradients clipped and not (columns):
    with and without momentum in the arms of the chapter on crossovers, at a constant and at a
    decaying rate (rows)."""
    found = {"clipped": ranks(runs, NOISECURVES), "not clipped": ranks(unclipped, NOISECURVES)}
    rows = {
        place: pd.concat({text: _inside(part, names).mean() for text, part in found.items()})
        for place, names in PLACES.items()
    }
    return pd.DataFrame(rows).T.rename_axis(["optimizer", "rate"])


def share_last(mean: pd.Series, optimizer: str, name: str = OWN) -> float:
    """Share (%) of the data sets and of one optimizer's conditions, all rates but home (L0), in which
    ``name`` is the last of the nine."""
    places = {c for key, names in PLACES.items() if key[0] == optimizer for c in names} - {"L0"}
    return 100 * float((_inside(ranks(mean, [name]), places) == 1 + len(RIVALS)).to_numpy().mean())


def _inside(frame, conditions):
    return frame[frame.index.get_level_values("condition").isin(conditions)]


def training_table(runs: pd.DataFrame, untrained: pd.Series, conditions: Sequence[str]):
    """Without training against the best of the nine, mean over the data sets, and in how many of them
    private training is better. ``untrained``: excess by data seed."""
    best = runs.loc[pd.IndexSlice[:, list(conditions), [OWN, *RIVALS]], :].mean(axis=1)
    best = best.groupby(CELL).min().unstack("condition")[list(conditions)]
    better = best.lt(untrained, axis=0).sum()
    columns = {"best private run": best.mean(), "no training": untrained.mean()}
    return pd.DataFrame({**columns, "data sets in which training is better": better})


def live_agreement(
    task, mechanisms: dict, cases: dict, noise_seeds, noisecurve, rivals, **accounting
):
    """:func:`agreement` with the order of mirrored runs that are made now, by condition."""
    runs = [
        logistic.study(task, mechanisms, cases, noise_seeds, mirrored=sign, **accounting)
        for sign in (False, True)
    ]
    predicted = {
        c: analysis.predict(task, mechanisms, case, **accounting) for c, case in cases.items()
    }
    predicted = pd.concat(predicted, names=["condition", "mechanism"])
    return agreement((runs[0] + runs[1]).mean(axis=1) / 2, predicted, noisecurve, rivals)


def regularisation_curve(mean: pd.Series, conditions: Sequence[str]) -> pd.DataFrame:
    """Mean rank over the data sets of NoiseCurve with each eps (rows) by condition (columns)."""
    names = [f"eps={eps:g}" for eps in logistic.EPSILONS]
    mean = mean[mean.index.isin(conditions, level="condition")]
    found = ranks(mean, names).groupby("condition").mean().T[list(conditions)]
    return found.set_axis(pd.Index(logistic.EPSILONS, name="eps"))


def designs_table(
    runs: pd.DataFrame, mirrored: pd.Series, quiet: pd.DataFrame, conditions: Sequence[str]
) -> pd.DataFrame:
    """Synthesised mechanisms against the catalogue's best, chosen in hindsight. From mirrored runs,
    means over the data sets: the privacy part over the least of the eight rivals', and the excess
    against the best of these and the NoiseCurves (%); and in how many data sets the paired 30-seed
    difference to that best is clear (2 SE), for the design and against it."""
    rows, exact, pool = {}, cells(mirrored), list(logistic_study.NINES)
    for cell, own in cells(runs, conditions).items():
        privacy = exact[cell] - quiet.loc[cell].sum()
        rival = own.loc[own.loc[pool].mean(axis=1).idxmin()]
        for name in analysis.DESIGNS:
            gap = own.loc[name] - rival
            clear = np.sign(gap.mean()) * (abs(gap.mean()) > 2 * gap.sem())
            rows[*cell, name] = {
                "own": privacy[name],
                "least": privacy[list(RIVALS)].min(),
                "change": exact[cell][name] - exact[cell][pool].min(),
                "best": exact[cell][pool].min(),
                "better": clear < 0,
                "worse": clear > 0,
            }
    table = pd.DataFrame(rows).T.astype(float).rename_axis([*CELL, "design"])
    grouped = table.groupby(["condition", "design"], sort=False)
    total = grouped.sum()
    found = (total["own"] / total["least"]).rename("privacy part / least").to_frame()
    found["excess (%)"] = 100 * total["change"] / total["best"]
    return found.join(total[["better", "worse"]].astype(int)).loc[list(conditions)]


def sources_table(
    mirrored: pd.Series, quiet: pd.DataFrame, predicted: pd.DataFrame, conditions: Sequence[str]
) -> pd.DataFrame:
    """H.2, mean over the data sets, a row a condition: the parts of the best mechanism's excess, the
    share that is there without privacy noise, and the privacy part over what each predicts (median
    over the nine mechanisms)."""
    pool, rows, seen = [OWN, *RIVALS], {}, cells(predicted)
    for cell, own in cells(mirrored, conditions).items():
        parts, total = quiet.loc[cell], own[pool].min()
        privacy = own[pool] - parts.sum()
        rest = {"privacy": privacy.min(), "total": total}
        ratios = seen[cell].loc[pool, MEASURED].rdiv(privacy, axis=0).median()
        rows[cell] = parts.to_dict() | rest | ratios.add_prefix("measured / ").to_dict()
    table = pd.DataFrame(rows).T.rename_axis(CELL).groupby("condition").mean()
    table.insert(5, "not privacy (%)", 100 * (1 - table["privacy"] / table["total"]))
    return table.loc[list(conditions)]


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
    rows["logistic.hessian_weight"] = float(
        np.mean(task.hessian() / (task.features.T @ task.features / len(task.labels)))
    )
    cases = frozen_table(logistic_study.frozen_cases().loc[[data_seed]])
    rows["logistic.frozen_resolved"] = int(cases["resolved at the momentum"].sum())
    rows["logistic.frozen_predicted"] = int(cases["predicted, H_cal"].sum())
    outcomes, seen = logistic_study.outcomes(), logistic_study.predicted()
    for name, value in curvature_table(seen).loc[data_seed].items():
        rows[f"logistic.curvature.{name}"] = value
    apart = logistic_study.of_data_sets("predictions", "eigenvalue_discrepancy")[data_seed]
    rows["logistic.curvature.max_eig_discrepancy"] = 100 * apart
    above = logistic_study.of_data_sets("runs", "optimum")
    broad = broad_ranking(outcomes.loc[[data_seed]], seen.loc[[data_seed]], above).loc[RULE]
    rows["logistic.resolved_pairs"] = int(broad["resolved pairs"].iloc[0])
    for text, name in (("static", "static"), ("momentdp", "calibration")):
        for measure in ("accuracy", "regret", "top-1"):
            label = {"accuracy": "pairwise", "top-1": "top1"}.get(measure, measure)
            rows[f"logistic.{label}.{text}"] = broad.loc[name, f"{measure} (%)"]
    return rows
