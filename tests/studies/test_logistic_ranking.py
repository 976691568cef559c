"""Order of predictions against outcomes: values worked out by hand, scipy's t test."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from momentdp.studies import logistic, logistic_ranking


@pytest.fixture
def runs():
    rows = {"a": [1.0, 5.0, 9.0], "b": [2.0, 6.0, 10.3], "c": [0.0, 9.0, 3.0]}
    return pd.DataFrame(rows).T


def test_pairs_are_resolved_by_pairing_only(runs):
    found = logistic_ranking.pairs(runs).set_index(["a", "b"])
    assert found.loc[("a", "b"), "difference"] == pytest.approx(-1.1)
    assert found.loc[("a", "b"), "se"] == pytest.approx(0.1)
    t = scipy.stats.ttest_rel(runs.loc["a"], runs.loc["b"]).statistic
    assert found.loc[("a", "b"), "difference"] / 0.1 == pytest.approx(t)
    assert list(found.resolved) == [True, False, False]
    unpaired = logistic_ranking.pairs(runs, paired=False).set_index(["a", "b"])
    assert not unpaired.resolved.any()
    welch = scipy.stats.ttest_ind(runs.loc["a"], runs.loc["c"], equal_var=False).statistic
    assert (unpaired.difference / unpaired.se)[("a", "c")] == pytest.approx(welch)


NINE = ["noisecurve_adam", *logistic.RIVALS]


def frame(values, names, conditions, columns):
    index = pd.MultiIndex.from_product([conditions, names], names=["condition", "mechanism"])
    return pd.DataFrame(np.tile(values, (len(conditions), 1)), index, columns)


def test_broad_ranking_by_hand():
    names, conditions = [*NINE, "iid"], logistic.NINE_CONDITIONS
    # excess 1..9 and iid 100; the noise seeds differ by 20, which only pairing removes
    levels = np.r_[1.0:10.0, 100.0][:, None]
    outcome = frame(levels + np.array([0.0, 20.0, 40.0]), names, conditions, range(3))
    swapped = np.r_[2.0, 1.0, 3.0:10.0, 100.0]  # the two best exchanged
    columns = ["right", "swap", "back"]
    predicted = frame(np.c_[levels[:, 0], swapped, -swapped], names, conditions, columns)
    outcome, predicted = (pd.concat({7: f}, names=["data_seed"]) for f in (outcome, predicted))
    found = logistic_ranking.broad_ranking(outcome, predicted, {7: 4.0})
    found = found.reindex(columns, level="predictor")
    paired = found.xs(("paired", "without iid"))
    assert list(paired["resolved pairs"]) == [9 * 36] * 3
    np.testing.assert_allclose(paired["NoiseCurve's (%)"], 100 * 8 / 36)
    np.testing.assert_allclose(paired["accuracy (%)"], [100, 100 * 35 / 36, 100 / 36])
    np.testing.assert_allclose(paired["tau"], [1, 34 / 36, -34 / 36])
    np.testing.assert_allclose(paired["regret (%)"], [0, 100 / 25, 800 / 25])  # 21 .. 29, and 4
    np.testing.assert_allclose(paired["top-1 (%)"], [100, 0, 0])
    assert list(found.xs(("paired", "with iid"))["resolved pairs"]) == [9 * 45] * 3
    # without pairing the standard error is sqrt(2) 20 / sqrt(3) = 16.3: only iid is told apart
    assert list(found.xs(("unpaired", "without iid"))["resolved pairs"]) == [0] * 3
    unpaired = found.xs(("unpaired", "with iid"))
    assert list(unpaired["resolved pairs"]) == [9 * 9] * 3
    np.testing.assert_allclose(unpaired["accuracy (%)"], [100, 100, 0])


def test_agreement_is_kendalls_tau_of_the_nine_only():
    outcome = frame(np.arange(10.0)[:, None], [*NINE, "iid"], ["L0"], [0])[0]
    order = np.r_[1.0, 0.0, 2.0:9.0]
    predicted = frame(np.c_[order][::-1], NINE[::-1], ["L0", "L1"], ["swap"])
    found = logistic_ranking.agreement(outcome, predicted)
    assert found.index.tolist() == ["L0"]  # L1 has no outcome
    expected = scipy.stats.kendalltau(order, np.arange(9)).statistic
    assert found.loc["L0", "swap"] == pytest.approx(expected) == 34 / 36


def test_frozen_table_counts_data_sets():
    rows = {  # difference, se, H_cal, closure
        (0, "one", "native_rates"): (-3, 1, -1, -1),
        (0, "one", "rates"): (3, 1, -1, 1),
        (1, "one", "native_rates"): (-3, 2, -1, -1),
        (1, "one", "rates"): (5, 1, 1, 1),
    }
    frozen = pd.DataFrame(rows, ["difference", "se", "calibration", "closure"]).T
    found = logistic_ranking.frozen_table(frozen.rename_axis(["data_seed", "case", "end"]))
    assert found.loc["one"].tolist() == [1, 2, 1, 1, 2]


@pytest.fixture
def two_data_sets():
    """One cell of two data sets: in the second the two best have exchanged places."""
    orders = {7: np.arange(9.0), 8: np.r_[1.0, 0.0, 2.0:9.0]}
    found = {s: frame(order[:, None], NINE, ["L0"], [0])[0] for s, order in orders.items()}
    return pd.concat(found, names=["data_seed"])


def test_steps_of_agreement_have_errors_over_the_data_sets(two_data_sets):
    right = pd.Series(np.tile(np.arange(9.0), 2), two_data_sets.index)
    predicted = pd.DataFrame({"calibration": right, "backwards": -right})
    found = logistic_ranking.agreement_steps(-two_data_sets, two_data_sets, predicted)
    np.testing.assert_allclose(found["mirrored"], [35 / 36, -35 / 36])
    np.testing.assert_allclose(found["30 seeds"], [-35 / 36, 35 / 36])
    np.testing.assert_allclose(found["se, mirrored"], 1 / 36)  # half the distance of two values
    np.testing.assert_allclose(found["se of gain, mirrored"], [0, 2 / 36])
    np.testing.assert_allclose(found["lowest data set"], [34 / 36, -1])
    assert found["cells below H_cal"].tolist() == [0, 2]


def test_two_curvatures_agree_on_the_best_or_on_all(two_data_sets):
    right = pd.Series(np.tile(np.arange(9.0), 2), two_data_sets.index)
    both = pd.DataFrame({"calibration": right, "full": two_data_sets})
    found = logistic_ranking.curvature_table(both)
    assert found.loc[7].to_dict() == {"top1_unchanged": 1, "ranking_unchanged": 1}
    assert found.loc[8].to_dict() == {"top1_unchanged": 0, "ranking_unchanged": 0}
    second = both.assign(full=[0, 2, 1, *range(3, 9)] * 2)
    assert logistic_ranking.curvature_table(second).loc[7].tolist() == [1, 0]
