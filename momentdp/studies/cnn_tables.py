"""What the records of the CNN study say: Table 4, paired tests, what noise costs, and power."""

from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from momentdp.studies.records import COMMITTED, read_record

RESULTS = COMMITTED / "cnn"
POOL = {  # G.3, and the paper's names
    "iid": "IID",
    "bandmf_mean": "BandMF",
    "toeplitz_mean": "Toeplitz",
    "dense": "Dense",
    "lr_aware_sqrt": "LR-aware",
}
CONDITIONS = {  # momentum, schedule
    "sgd_constant": (0.0, "constant"),
    "momentum_constant": (0.9, "constant"),
    "momentum_cosine": (0.9, "cosine"),
    "momentum_warmup_cosine": (0.9, "warmup_cosine"),
}
LABELS = {
    "sgd_constant": "μ = 0, constant rate",
    "momentum_constant": "μ = 0.9, constant rate",
    "momentum_cosine": "μ = 0.9, cosine",
    "momentum_warmup_cosine": "μ = 0.9, warmup and cosine",
}
NO_NOISE = "no_noise"  # the arm that clips but adds nothing: what does privacy noise cost at all?
OUTCOMES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss")


def load_records(out: str | Path = RESULTS, *, whole: bool = False) -> pd.DataFrame:
    """One row a run: condition, mechanism, seed, outcomes at the last checkpoint, clipping.

    In the order of `CONDITIONS`. `whole` leaves out the seeds of a condition that do not have all mechanisms yet.
    """
    rows = []
    for path in sorted(Path(out).glob("*.*.*.json")):
        record = read_record(path)
        last = record["checkpoints"][-1]
        row = {key: record[key] for key in ("condition", "mechanism", "seed")}
        row |= {key: last[key] for key in OUTCOMES} | {"clipped": np.mean(record["clipped"])}
        names = ("lambda_max", "clip_norm", "learning_rate", "seconds")
        rows.append(row | {key: record[key] for key in names})
    if not rows:
        return pd.DataFrame()
    order = list(CONDITIONS).index
    table = pd.DataFrame(rows).sort_values("condition", key=lambda c: c.map(order), kind="stable")
    if whole:
        runs = table.groupby(["condition", "seed"])["mechanism"].transform("size")
        table = table[runs == table["mechanism"].nunique()]
    return table


def best_and_worst(records: pd.DataFrame, outcome: str = "test_accuracy") -> pd.DataFrame:
    """Table 4: best, worst, their spread and combined standard error for each condition.

    The standard errors are over seeds; the combined one is the root of the sum of their squares,
    the paired one that of the difference within seeds. The arm without noise takes no part.
    """
    rows = {}
    larger = outcome.endswith("accuracy")
    private = records[records.mechanism != NO_NOISE]
    for condition, group in private.groupby("condition", sort=False):
        means = group.groupby("mechanism")[outcome].agg(["mean", "sem"])
        means = means.sort_values("mean", ascending=not larger)
        best, worst = means.iloc[0], means.iloc[-1]
        wide = group.pivot(index="seed", columns="mechanism", values=outcome)
        rows[condition] = {
            "best": means.index[0],
            "best_mean": best["mean"],
            "worst": means.index[-1],
            "worst_mean": worst["mean"],
            "spread": abs(best["mean"] - worst["mean"]),
            "combined_se": np.hypot(best["sem"], worst["sem"]),
            "paired_se": (wide[means.index[0]] - wide[means.index[-1]]).sem(),
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def paired_tests(records: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Paired t tests over seeds of all pairs in each condition, p adjusted by Holm over the table.

    `difference` is the first mechanism's mean minus the second's.
    """
    rows = []
    for condition, group in records.groupby("condition", sort=False):
        wide = group.pivot(index="seed", columns="mechanism", values=outcome)
        for i, first in enumerate(wide.columns):
            for second in wide.columns[i + 1 :]:
                gap = wide[first] - wide[second]
                test = stats.ttest_1samp(gap, 0.0) if len(gap) > 1 else (np.nan, np.nan)
                rows.append((condition, first, second, gap.mean(), gap.sem(), *test))
    names = ["condition", "first", "second", "difference", "standard_error", "t", "p"]
    table = pd.DataFrame(rows, columns=names).sort_values("p", ignore_index=True)
    remaining = len(table) - np.arange(len(table))
    table["p_holm"] = np.minimum(np.maximum.accumulate(table["p"] * remaining), 1.0)
    return table


def resolved(records: pd.DataFrame, outcome: str) -> pd.DataFrame:
    """The pairs of private mechanisms that `paired_tests` tells apart at 5%, with their `sign`."""
    tests = paired_tests(records[records.mechanism != NO_NOISE], outcome)
    tests = tests[tests["p_holm"] < 0.05]
    return tests.assign(sign=np.sign(tests["difference"]))


def count_resolved(records: pd.DataFrame) -> pd.DataFrame:
    """Pairs of private mechanisms by condition, and how many `resolved` tells apart; "all" below."""
    private = records[records.mechanism != NO_NOISE]
    found = {"pairs": paired_tests(private)["condition"].value_counts()}
    for outcome in ("test_loss", "test_accuracy"):
        found[f"resolved in {outcome[5:]}"] = resolved(records, outcome)["condition"].value_counts()
    table = pd.DataFrame(found).reindex(records["condition"].unique()).fillna(0).astype(int)
    return pd.concat([table, table.sum().to_frame("all").T])


def cost_of_noise(records: pd.DataFrame, outcome: str = "test_loss") -> pd.DataFrame:
    """Outcome without noise and with it (mean over the mechanisms), paired over seeds."""
    wide = records.pivot(index=["condition", "seed"], columns="mechanism", values=outcome)
    quiet, noisy = wide[NO_NOISE], wide.drop(columns=NO_NOISE).mean(axis=1)
    table = pd.DataFrame({"without noise": quiet, "with noise": noisy, "difference": noisy - quiet})
    by_condition = table.groupby("condition", sort=False)
    errors = by_condition["difference"].sem()
    return by_condition.mean().assign(**{"standard error": errors})


def calibrated(folder: Path = RESULTS) -> pd.DataFrame:
    """What was measured at each start: a calibration record a row."""
    paths = sorted(Path(folder).glob("calibration.*.json"))
    return pd.DataFrame([read_record(path) for path in paths])


def seeds_for(noise, spread, power: float = 0.8):
    """Paired seeds that resolve a mean difference `spread` at 5% with this power.

    `noise` is the standard deviation of one paired difference, in the same unit; numbers or Series.
    Normal approximation, and two seeds for the estimated variance.
    """
    quantiles = stats.norm.ppf(0.975) + stats.norm.ppf(power)
    return np.ceil((quantiles * noise / spread) ** 2) + 2


def seeds_by_pair(records: pd.DataFrame, condition: str, predicted: pd.Series) -> pd.DataFrame:
    """Paired seeds that resolve each pair's predicted difference in test loss (nats), most telling first.

    `noise of a seed` is the standard deviation of the pair's difference in these records.
    """
    ends = records[records.condition == condition]
    ends = ends.pivot(index="seed", columns="mechanism", values="test_loss")
    rows = {}
    for first, second in combinations(predicted.sort_values().index, 2):
        gap = predicted[second] - predicted[first]
        noise = (ends[second] - ends[first]).std()
        rows[first, second] = {"predicted": gap, "noise of a seed": noise}
        rows[first, second]["seeds"] = seeds_for(noise, gap)
    table = pd.DataFrame(rows).T.rename_axis(["first", "second"])
    return table.sort_values("seeds")


def easiest_pairs(records: pd.DataFrame, predicted: pd.Series) -> pd.DataFrame:
    """The pair that takes the fewest seeds in each condition, by (condition, mechanism) damages."""
    rows = {}
    for condition in records["condition"].unique():
        first = seeds_by_pair(records, condition, predicted.loc[condition]).head(1).reset_index()
        rows[condition] = first.iloc[0]
    return pd.DataFrame.from_dict(rows, orient="index")


def ledger_rows() -> dict[str, float | str]:
    """Table 4's conditions that have the paper's five seeds in the committed records."""
    records, rows = load_records(whole=True), {}
    if records.empty:
        return rows
    for condition, row in best_and_worst(records).iterrows():
        group = records[records.condition == condition]
        if group["seed"].nunique() < 5:
            continue
        means = (100 * group.groupby("mechanism")["test_accuracy"].mean()).round(1)
        for place in ("best", "worst"):
            tied = [POOL[name] for name in POOL if means[name] == means[row[place]]]
            rows[f"cnn.{condition}.{place}"] = "-".join(tied)
            rows[f"cnn.{condition}.{place}_accuracy"] = 100 * row[f"{place}_mean"]
        rows[f"cnn.{condition}.spread"] = 100 * row["spread"]
        rows[f"cnn.{condition}.combined_se"] = 100 * row["combined_se"]
    largest = calibrated()["lambda_max"][0]
    rows |= {"cnn.eta0": 0.3 / largest, "cnn.rejected_eta_lmax": 0.05 * largest}
    spreads = [value for name, value in rows.items() if name.endswith("spread")]
    if len(spreads) == len(CONDITIONS):
        signs = resolved(records, "test_accuracy").groupby(["first", "second"])["sign"].nunique()
        rows |= {"cnn.spread_low": min(spreads), "cnn.spread_high": max(spreads)}
        rows |= {"cnn.verdict": "some" if (signs > 1).any() else "none"}
    return rows
