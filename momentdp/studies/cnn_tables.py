"""What the records of the CNN study say: Table 4 and paired tests."""

from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats

from momentdp.studies.records import read_record

NO_NOISE = "no_noise"  # the arm that clips but adds nothing: what does privacy noise cost at all?
OUTCOMES = ("validation_accuracy", "validation_loss", "test_accuracy", "test_loss")


def load_records(out: str | Path) -> pd.DataFrame:
    """One row a run: condition, mechanism, seed, outcomes at the last checkpoint, clipping."""
    rows = []
    for path in sorted(Path(out).glob("*.*.*.json")):
        record = read_record(path)
        last = record["checkpoints"][-1]
        row = {key: record[key] for key in ("condition", "mechanism", "seed")}
        row |= {key: last[key] for key in OUTCOMES} | {"clipped": np.mean(record["clipped"])}
        rows.append(row | {key: record[key] for key in ("lambda_max", "clip_norm", "seconds")})
    return pd.DataFrame(rows)


def best_and_worst(records: pd.DataFrame, outcome: str = "test_accuracy") -> pd.DataFrame:
    """Table 4: best, worst, their spread and combined standard error for each condition.

    The standard errors are over seeds; the combined one is the root of the sum of their squares.
    The arm without noise takes no part.
    """
    rows = {}
    larger = outcome.endswith("accuracy")
    private = records[records.mechanism != NO_NOISE]
    for condition, group in private.groupby("condition", sort=False):
        means = group.groupby("mechanism")[outcome].agg(["mean", "sem"])
        means = means.sort_values("mean", ascending=not larger)
        best, worst = means.iloc[0], means.iloc[-1]
        rows[condition] = {
            "best": means.index[0],
            "best_mean": best["mean"],
            "worst": means.index[-1],
            "worst_mean": worst["mean"],
            "spread": abs(best["mean"] - worst["mean"]),
            "combined_se": np.hypot(best["sem"], worst["sem"]),
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
                test = stats.ttest_1samp(gap, 0.0)
                rows.append((condition, first, second, gap.mean(), gap.sem(), *test))
    names = ["condition", "first", "second", "difference", "standard_error", "t", "p"]
    table = pd.DataFrame(rows, columns=names).sort_values("p", ignore_index=True)
    remaining = len(table) - np.arange(len(table))
    table["p_holm"] = np.minimum(np.maximum.accumulate(table["p"] * remaining), 1.0)
    return table
