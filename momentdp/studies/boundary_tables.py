"""What the records of the boundary study say: is the order another one at another momentum?"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from momentdp.evaluation import ranking
from momentdp.studies.boundary_study import RESULTS
from momentdp.studies.cnn_tables import NO_NOISE, paired_tests
from momentdp.studies.records import read_record

NAMES = {"made_0": "made at μ = 0", "made_9": "made at μ = 0.9"}
NAMES |= {"final_0": "final loss only, μ = 0", "final_9": "final loss only, μ = 0.9"}
NAMES |= {f"made_{at}_{k}": f"made at μ = {mu}, start {n}"
          for at, mu in ((0, 0), (9, 0.9)) for k, n in (("b", 2), ("c", 3))}  # fmt: skip
NAMES |= {"control": "control (knows neither)", NO_NOISE: "no noise"}


def _title(condition: str) -> str:
    epsilon, momentum = condition.split()
    return f"ε = {epsilon}, μ = {momentum}"


def load_runs(folder: Path = RESULTS) -> pd.DataFrame:
    """One row a run: condition ("epsilon momentum"), mechanism, seed, and the outcomes."""
    rows = []
    for path in sorted(Path(folder).glob("run-*.json")):
        record = read_record(path)
        for mechanism, found in record["outcomes"].items():
            about = {key: record[key] for key in ("condition", "seed")}
            rows.append(about | {"mechanism": mechanism} | found)
    return pd.DataFrame(rows)


def predicted(folder: Path = RESULTS) -> dict[str, pd.DataFrame]:
    """condition -> the frozen scores, a mechanism a row."""
    frozen = json.loads((Path(folder) / "frozen.json").read_text())
    return {c: pd.DataFrame(d["predictions"]) for c, d in frozen["conditions"].items()}


def means(runs: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Mean outcome of each mechanism (rows) in each condition (columns)."""
    table = runs.pivot_table(index="mechanism", columns="condition", values=outcome)
    return table.rename(index=NAMES, columns=_title)


def interaction(runs: pd.DataFrame, first: str, second: str, outcome="test_loss") -> pd.DataFrame:
    """`first` minus `second` in each condition, paired over seeds: mean, standard error, t, p."""
    wide = runs.pivot_table(index=["condition", "seed"], columns="mechanism", values=outcome)
    gaps = (wide[first] - wide[second]).groupby(level="condition")
    rows = {}
    for condition, gap in gaps:
        test = stats.ttest_1samp(gap, 0.0)
        rows[condition] = {"difference": gap.mean(), "standard error": gap.sem()}
        rows[condition] |= {"t": test.statistic, "p": test.pvalue}
    return pd.DataFrame(rows).T.rename(index=_title)


def noise_cost_removed(runs: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Share of dense's excess over training without noise that each mechanism does not have."""
    table = means(runs, outcome)
    cost = table.drop(NAMES[NO_NOISE]) - table.loc[NAMES[NO_NOISE]]
    return 1 - cost / cost.loc["dense"]


def agreement(runs: pd.DataFrame, folder: Path = RESULTS) -> pd.DataFrame:
    """Each frozen score against the mean test loss: tau, accuracy on resolved pairs, regret, and
    for damages the median of observed excess over predicted. Means over the conditions.

    A pair is resolved if its paired test, adjusted by Holm over all pairs, has p < 0.05.
    """
    tests = paired_tests(runs[runs.mechanism != NO_NOISE])
    tests = tests[tests["p_holm"] < 0.05]
    table, rows = runs.pivot_table(index="mechanism", columns="condition", values="test_loss"), []
    for condition, scores in predicted(folder).items():
        truth = table.loc[scores.index, condition].to_numpy()
        excess = truth - table.loc[NO_NOISE, condition]
        pairs = tests[tests["condition"] == condition]
        for name, score in scores.items():
            said = score[pairs["first"]].to_numpy() - score[pairs["second"]].to_numpy()
            row = {"tau": ranking.kendall_tau(score.to_numpy(), truth)}
            row["resolved pairs"] = np.mean(np.sign(said) == np.sign(pairs["difference"]))
            row["regret %"] = 100 * (truth[np.argmin(score)] / truth.min() - 1)
            size = np.median(excess / score) if name.startswith(("MOMENT", "Noise")) else np.nan
            rows.append({"score": name} | row | {"observed / predicted": size})
    return pd.DataFrame(rows).groupby("score", sort=False).mean()


def seeds_needed(runs: pd.DataFrame, outcome: str, power: float = 0.8) -> pd.Series:
    """Paired seeds that tell dense from Toeplitz at 5% with this power, by condition (normal
    approximation, and two more for the estimated variance)."""
    rows = {}
    quantiles = stats.norm.ppf(0.975) + stats.norm.ppf(power)
    for condition, group in runs.groupby("condition"):
        wide = group.pivot(index="seed", columns="mechanism", values=outcome)
        gap = wide["dense"] - wide["toeplitz_mean"]
        rows[_title(condition)] = int(np.ceil((quantiles * gap.std() / abs(gap.mean())) ** 2)) + 2
    return pd.Series(rows, name=outcome)
