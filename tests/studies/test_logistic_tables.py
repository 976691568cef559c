"""What the chapter shows: ranks, arms, sources, designs and frozen pairs worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from momentdp.studies import logistic, logistic_study, logistic_tables
from momentdp.studies.crossovers import NOISECURVES

LEVELS = ["data_seed", "condition", "mechanism"]


def outcomes(values: dict) -> pd.DataFrame:
    """(data_seed, condition) -> excess of each mechanism, three noise seeds that differ by 1."""
    rows = {
        (*cell, name): excess + np.array([-1.0, 0.0, 1.0])
        for cell, column in values.items()
        for name, excess in column.items()
    }
    return pd.DataFrame(rows).T.rename_axis(LEVELS)


RIVALS = dict(zip(logistic.RIVALS, range(10, 18), strict=True))
FIRST = RIVALS | {"noisecurve_adam": 20.0, "noisecurve": 9.0, "noisecurve_floor": 13.5}
OTHER = RIVALS | {"noisecurve_adam": 9.0, "noisecurve": 30.0, "noisecurve_floor": 31.0}


def test_each_noisecurve_competes_with_the_eight_only():
    runs = outcomes({(0, "L0"): FIRST}).loc[0]
    found = logistic_tables.noisecurve_table(runs).loc["L0"]
    assert found["rank"].to_dict() == {"noisecurve": 1, "noisecurve_floor": 5, "noisecurve_adam": 9}
    assert found["best excess"].to_dict() == {
        "noisecurve": 9,
        "noisecurve_floor": 10,
        "noisecurve_adam": 10,
    }
    np.testing.assert_allclose(found["se"], 1 / np.sqrt(3))
    np.testing.assert_allclose(found["minus best rival"], [-1, 3.5, 10])
    np.testing.assert_allclose(
        found["se of that"], 0, atol=1e-12
    )  # paired: the seeds' luck is gone


@pytest.fixture
def ten():
    """Adam's is first on two data sets, but last under momentum (arm a) and a decay alone on one."""
    others = [f"L{i}{mark}" for mark in ("'", "''") for i in (1, 2, 3)]
    cells = {(seed, name): OTHER for seed in (0, 1) for name in ("L0", *others)}
    moved = ["L1", "L2", "L3", "mu=0 cosine", "mu=0 warmup_cosine"]
    cells |= {(0, name): FIRST for name in moved} | {(1, name): OTHER for name in moved}
    return outcomes(cells).mean(axis=1)


def test_what_decides_averages_ranks_over_schedules_and_data_sets(ten):
    lists = logistic_tables.rank_lists(ten, ["L0", "L1"])
    assert lists.loc["L1"].to_dict() == dict(zip(NOISECURVES, ("1 9", "5 9", "9 1"), strict=True))
    better = ten - 100 * (ten.index.get_level_values("mechanism") == "noisecurve")
    found = logistic_tables.what_decides(ten, better)
    assert found["clipped"].loc[("no momentum", "constant"), "noisecurve_adam"] == 1
    for place in (("no momentum", "decaying"), ("momentum (arm a)", "constant")):
        assert found["clipped"].loc[place].tolist() == [5, 7, 5]
        assert found["not clipped"].loc[place].tolist() == [1, 7, 5]
    assert found["clipped"].loc[("no momentum, larger step (arm c)", "decaying")].tolist() == [9, 9, 1]  # fmt: skip
    shares = {name: logistic_tables.share_last(ten, name) for name, _ in logistic_tables.PLACES}
    assert list(shares.values()) == [50, 50, 0, 0]


def test_training_counts_only_where_it_beats_doing_nothing():
    runs = outcomes({(0, "L1"): FIRST, (1, "L1"): OTHER})
    untrained = pd.Series({0: 9.5, 1: 9.5})  # 9.0 is the noisecurve of data set 0, not of the nine
    found = logistic_tables.training_table(runs, untrained, ["L1"]).loc["L1"]
    assert found.tolist() == [9.5, 9.5, 1]


def test_sources_and_designs_by_hand():
    designs = dict.fromkeys(logistic_tables.analysis.DESIGNS, 9.5) | {"synthesised": 8.0}
    runs = outcomes({(seed, "L1"): FIRST | designs for seed in (0, 1)})
    for name in set(logistic_study.NINES) - set(FIRST):
        raise AssertionError(name)
    mean, index = runs.mean(axis=1), [(0, "L1"), (1, "L1")]
    quiet = pd.DataFrame(
        {"path": -1.0, "sampling": 5.0, "clipping": 2.0},
        index=pd.MultiIndex.from_tuples(index, names=LEVELS[:2]),
    )
    found = logistic_tables.designs_table(runs, mean, quiet, ["L1"]).loc["L1"]
    # privacy parts: 8 - 6 = 2 for the design, 10 - 6 = 4 for the best of the eight
    assert found.loc["synthesised", "privacy part / least"] == pytest.approx(0.5)
    assert found.loc["synthesised", "excess (%)"] == pytest.approx(100 * (8 / 9 - 1))
    assert found[["better", "worse"]].values.tolist() == [[2, 0], [0, 2], [0, 2], [0, 2]]

    predicted = pd.DataFrame({n: (mean - 6) / 2 for n in logistic_tables.MEASURED})
    sources = logistic_tables.sources_table(mean, quiet, predicted, ["L1"]).loc["L1"]
    assert sources[["path", "sampling", "clipping", "privacy", "total"]].tolist() == [-1, 5, 2, 4, 10]  # fmt: skip
    assert sources["not privacy (%)"] == pytest.approx(60)
    assert sources["measured / closure"] == pytest.approx(2)


def test_winners_have_the_papers_labels(ten):
    assert set(logistic_tables.winners(ten)) == {"Dense MF", "NoiseCurve"}
    swapped = ten.copy()
    swapped.loc[pd.IndexSlice[:, "L0", "bandinv_max"]] = 1.0
    assert logistic_tables.winners(swapped)[(0, "L0")] == "BISR-last; BISR-max"
