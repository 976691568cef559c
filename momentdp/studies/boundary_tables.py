"""What the records of the boundary study say: is the order another one at another momentum?"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.transfer import stability_limit
from momentdp.evaluation import ranking
from momentdp.studies.boundary_designs import CURVATURES
from momentdp.studies.boundary_study import RESULTS
from momentdp.studies.cnn_tables import NO_NOISE, paired_tests, seeds_for
from momentdp.studies.records import read_record

NAMES = {"made_0": "made at μ = 0", "made_9": "made at μ = 0.9"}
NAMES |= {"final_0": "final loss only, μ = 0", "final_9": "final loss only, μ = 0.9"}
NAMES |= {f"made_{at}_{k}": f"made at μ = {mu}, start {n}"
          for at, mu in ((0, 0), (9, 0.9)) for k, n in (("b", 2), ("c", 3))}  # fmt: skip
NAMES |= {"control": "made at μ = 0, no curvature", "flat_9": "made at μ = 0.9, no curvature"}
NAMES |= {NO_NOISE: "no noise"}
SCORES = {"static": "static", "NoiseCurve": "NoiseCurve (μ = 0)"}
SCORES |= {
    name: f"MOMENT-DP, {'clipped map' if clipped else 'plain Hessian'}, step {steps}"
    for name, (clipped, steps) in CURVATURES.items()
}
BEST = "root of final x mean"
SCORES |= {
    "final + mean": "final + mean",
    BEST: BEST,
    "momentum left out": f"{BEST}, at η / (1 − μ)",
}


def _title(condition: str) -> str:
    epsilon, momentum = condition.split()
    return f"ε = {epsilon}, μ = {momentum}"


def load_runs(folder: Path = RESULTS, kind: str = "run") -> pd.DataFrame:
    """One row a run: condition ("epsilon momentum"), mechanism, seed, and the outcomes.

    Whole seeds only: one that has not run in every condition is left out. `kind` "late" reads the
    control that was added when the outcomes were known.
    """
    rows = []
    for path in sorted(Path(folder).glob(f"{kind}-*.json")):
        record = read_record(path)
        for mechanism, found in record["outcomes"].items():
            about = {key: record[key] for key in ("condition", "seed")}
            rows.append(about | {"mechanism": mechanism} | found)
    runs = pd.DataFrame(rows)
    declared = json.loads((Path(folder) / "frozen.json").read_text())["conditions"]
    return runs[runs.groupby("seed")["condition"].transform("nunique") == len(declared)]


def predicted(folder: Path = RESULTS) -> dict[str, pd.DataFrame]:
    """condition -> scores, a mechanism a row: those frozen, then those computed afterwards.

    `attrs["frozen"]` names the former. A void prediction is NaN. "momentum left out" is the best
    score as it is without momentum, where the steps are as long: runs share the effective rate.
    """
    frozen, found = json.loads((Path(folder) / "frozen.json").read_text()), {}
    after = Path(folder) / "after.json"
    late = read_record(after)["conditions"] if after.exists() else {}
    for condition, declared in frozen["conditions"].items():
        table = pd.DataFrame(declared["predictions"])
        if condition in late:
            more = pd.DataFrame(late[condition]["predictions"]).loc[table.index]
            table = table.join(more[more.columns.difference(table.columns)])
        found[condition] = table.astype(float)
        found[condition].attrs["frozen"] = list(declared["predictions"])
    still = {condition: found[f"{condition.split()[0]} 0"][BEST] for condition in found}
    for condition, table in found.items():
        table["momentum left out"] = still[condition]
    return found


def foreseen(score: str = BEST, folder: Path = RESULTS) -> pd.DataFrame:
    """One score of each mechanism (rows) in each condition (columns)."""
    found = {_title(condition): table[score] for condition, table in predicted(folder).items()}
    return pd.DataFrame(found).rename(index=NAMES)


def stability(folder: Path = RESULTS) -> pd.DataFrame:
    """eta lambda_max over its limit 2 (1 + mu), a curvature a row: void from one on."""
    declared = json.loads((Path(folder) / "frozen.json").read_text())["conditions"]
    after = Path(folder) / "after.json"
    seen, found = read_record(after)["conditions"] if after.exists() else declared, {}
    for condition, about in declared.items():
        momentum = float(condition.split()[1])
        rate = about["effective_rate"] * (1 - momentum) / stability_limit(Momentum(momentum))
        largest = seen[condition]["largest_curvature"]
        found[_title(condition)] = {SCORES[name]: rate * largest[name] for name in CURVATURES}
    return pd.DataFrame(found)


def means(runs: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Mean outcome of each mechanism (rows) in each condition (columns)."""
    table = runs.pivot_table(index="mechanism", columns="condition", values=outcome)
    return table.rename(index=NAMES, columns=_title)


def interaction(runs: pd.DataFrame, first: str, second: str, outcome="test_loss") -> pd.DataFrame:
    """`first` minus `second` in each condition, paired over seeds: mean, standard error, t, p."""
    wide = runs.pivot_table(index=["condition", "seed"], columns="mechanism", values=outcome)
    gaps = (wide[first] - wide[second]).groupby(level="condition")
    rows = {condition: _tested(gap, "difference") for condition, gap in gaps}
    return pd.DataFrame(rows).T.rename(index=_title)


def _tested(gaps: pd.Series, name: str) -> dict[str, float]:
    test = stats.ttest_1samp(gaps, 0.0)
    found = {name: gaps.mean(), "standard error": gaps.sem()}
    return found | {"t": test.statistic, "p": test.pvalue}


def exchange(runs: pd.DataFrame, first: str, second: str, outcome="test_loss") -> pd.DataFrame:
    """How much `first` minus `second` changes from momentum 0 to 0.9, paired over seeds."""
    wide = runs.pivot_table(index=["seed", "condition"], columns="mechanism", values=outcome)
    gaps, rows = (wide[first] - wide[second]).unstack("condition"), {}
    for epsilon in sorted({condition.split()[0] for condition in gaps}):
        change = gaps[f"{epsilon} 0.9"] - gaps[f"{epsilon} 0"]
        rows[f"ε = {epsilon}"] = _tested(change, "change")
    return pd.DataFrame(rows).T


def noise_cost_removed(runs: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Share of dense's excess over training without noise that each mechanism does not have."""
    table = means(runs, outcome)
    cost = table.drop(NAMES[NO_NOISE]) - table.loc[NAMES[NO_NOISE]]
    return 1 - cost / cost.loc["dense"]


def all_pairs(runs: pd.DataFrame) -> pd.DataFrame:
    """`paired_tests` of test loss among mechanisms, Holm over all pairs of all conditions."""
    return paired_tests(runs[runs["mechanism"] != NO_NOISE])


def flips(runs: pd.DataFrame) -> pd.DataFrame:
    """Pairs resolved (Holm, 5%) at both momenta with opposite signs, and their t values."""
    tests = all_pairs(runs)
    tests[["epsilon", "momentum"]] = tests["condition"].str.split(expand=True)
    tests = tests[tests["p_holm"] < 0.05]
    wide = tests.pivot(index=["epsilon", "first", "second"], columns="momentum", values="t")
    wide = wide.reindex(columns=["0", "0.9"]).dropna()
    wide = wide[np.sign(wide["0"]) != np.sign(wide["0.9"])].reset_index()
    wide[["first", "second"]] = wide[["first", "second"]].replace(NAMES)
    return wide.rename(columns={"0": "t at μ = 0", "0.9": "t at μ = 0.9"}).rename_axis(columns=None)


def comparisons(runs: pd.DataFrame) -> pd.DataFrame:
    """How many pairs were tested, how many are resolved, and how many flip, by budget.

    The family of Holm's adjustment is the whole table of `all_pairs`; rows are parts of it. Designs
    from a second or third public start are near copies: the middle row goes without them.
    """
    tests, turned = all_pairs(runs), flips(runs)
    everyone = set(tests["first"]) | set(tests["second"])
    groups = {
        "classics": everyone & {"iid", "toeplitz_mean", "bisr", "dense"},
        "one public start": {name for name in everyone if not name.endswith(("_b", "_c"))},
        "all": everyone,
    }
    rows = {}
    for title, members in groups.items():
        inside = tests[tests["first"].isin(members) & tests["second"].isin(members)]
        shown = {NAMES.get(name, name) for name in members}
        those = turned[turned["first"].isin(shown) & turned["second"].isin(shown)]
        rows[title] = {"mechanisms": len(members), "pairs tested": len(inside)}
        rows[title] |= {"resolved": (inside["p_holm"] < 0.05).sum()}
        rows[title] |= {f"flips, ε = {e}": (those["epsilon"] == e).sum() for e in ("1", "4")}
    return pd.DataFrame(rows).T


def agreement(runs: pd.DataFrame, folder: Path = RESULTS) -> pd.DataFrame:
    """Each score against the mean test loss, a row for each score and condition: tau, share of
    resolved pairs ordered right, regret, and for damages the median of observed over predicted.

    A pair is resolved if its test in `all_pairs` has p < 0.05. Void predictions are NaN.
    """
    tests = all_pairs(runs)
    tests = tests[tests["p_holm"] < 0.05]
    table, rows = runs.pivot_table(index="mechanism", columns="condition", values="test_loss"), []
    for condition, found in predicted(folder).items():
        truth = table.loc[found.index, condition].to_numpy()
        excess = truth - table.loc[NO_NOISE, condition]
        pairs = tests[tests["condition"] == condition]
        for name, score in found.items():
            frozen = "before" if name in found.attrs["frozen"] else "after"
            row = {"score": SCORES[name], "computed": frozen, "condition": condition}
            if score.notna().all():
                said = score[pairs["first"]].to_numpy() - score[pairs["second"]].to_numpy()
                row["tau"] = ranking.kendall_tau(score.to_numpy(), truth)
                row["resolved pairs"] = np.mean(np.sign(said) == np.sign(pairs["difference"]))
                row["regret %"] = 100 * (truth[np.argmin(score)] / truth.min() - 1)
                if name in CURVATURES or name == "NoiseCurve":
                    row["observed / predicted"] = np.median(excess / score)
            rows.append(row)
    return pd.DataFrame(rows)


def side_by_side(agreed: pd.DataFrame) -> pd.DataFrame:
    """`agreement` over the conditions: mean and, in brackets, least and greatest.

    A score that is void in a condition says so, and how often.
    """

    def over_conditions(values: pd.Series) -> str:
        if values.notna().any():
            return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"
        return ""

    order = pd.Categorical(agreed["score"], SCORES.values())
    grouped = agreed.assign(score=order).groupby(["score", "computed"], observed=True)
    table = grouped[["tau", "resolved pairs", "regret %", "observed / predicted"]].agg(
        over_conditions
    )
    void = grouped["tau"].agg(lambda values: values.isna().sum())
    table.loc[void > 0, "tau"] = [f"void in {count}" for count in void[void > 0]]
    return table.reset_index().set_index("score")


def seeds_needed(runs: pd.DataFrame, outcome: str) -> pd.Series:
    """Paired seeds that tell dense from Toeplitz, by condition: `cnn_tables.seeds_for`."""
    rows = {}
    for condition, group in runs.groupby("condition"):
        wide = group.pivot(index="seed", columns="mechanism", values=outcome)
        gap = wide["dense"] - wide["toeplitz_mean"]
        rows[_title(condition)] = int(seeds_for(gap.std(), gap.mean()))
    return pd.Series(rows, name=outcome)
