"""Ranking measures against hand-counted cases and scipy."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from momentdp.evaluation import ranking

MEASURES = [
    ranking.pairwise_accuracy,
    ranking.kendall_tau,
    ranking.relative_regret,
    ranking.top1,
]
TRUTH = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def test_four_mechanisms_by_hand():
    """Order b, a, d, c: pairs ab and cd of six are wrong, b costs twice the best."""
    score = {"a": 20.0, "b": 10.0, "c": 40.0, "d": 30.0}
    assert ranking.pairwise_accuracy(score, TRUTH) == pytest.approx(4 / 6)
    assert ranking.kendall_tau(score, TRUTH) == pytest.approx(1 / 3)
    assert ranking.relative_regret(score, TRUTH) == pytest.approx(1.0)
    assert ranking.top1(score, TRUTH) == 0.0


@pytest.mark.parametrize(("sign", "expected"), [(1, (1, 1, 0, 1)), (-1, (0, -1, 3, 0))])
def test_perfect_and_reversed(sign, expected):
    score = sign * np.array([1.0, 5.0, 6.0, 7.0])
    got = [measure(score, list(TRUTH.values())) for measure in MEASURES]
    assert got == pytest.approx(expected)


def test_tie_in_truth_leaves_the_pair_out():
    truth = [1.0, 2.0, 2.0 * (1 + 5e-10), 4.0]
    assert ranking.pairwise_accuracy([1, 3, 2, 4], truth) == 1.0
    assert ranking.pairwise_accuracy([1, 3, 2, 4], truth, tie_tolerance=0.0) == pytest.approx(5 / 6)
    # tau-b by hand: 5 concordant pairs of sqrt(6 x 5)
    assert ranking.kendall_tau([1, 3, 2, 4], truth) == pytest.approx(5 / np.sqrt(30))


def test_tie_in_score_counts_half():
    score = [1.0, 1.0 + 1e-12, 3.0, 4.0]
    assert ranking.pairwise_accuracy(score, list(TRUTH.values())) == pytest.approx(5.5 / 6)
    assert ranking.top1(score, list(TRUTH.values())) == 0.5
    assert ranking.relative_regret(score, list(TRUTH.values())) == pytest.approx(0.5)


def test_any_of_the_truly_tied_best_is_a_hit():
    truth = [1.0, 1.0 + 1e-11, 3.0]
    for score in ([1.0, 2.0, 3.0], [2.0, 1.0, 3.0]):
        assert ranking.top1(score, truth) == 1.0
        assert ranking.relative_regret(score, truth) == pytest.approx(0.0, abs=1e-10)


def test_tolerance_is_relative_and_chains():
    small = 1e-9 * np.array([1.0, 1.0 + 1e-6])
    assert ranking.top1(small, small) == 1.0
    assert ranking.top1(small[::-1], small) == 0.0
    chain = [1.0, 1.0 + 8e-10, 1.0 + 16e-10, 2.0]
    assert ranking.pairwise_accuracy([3, 2, 1, 4], chain) == 1.0
    negative = [-2.0, -2.0 * (1 + 1e-12), -1.0]
    assert ranking.pairwise_accuracy([2, 1, 3], negative) == 1.0


@pytest.mark.parametrize("seed", range(5))
def test_against_scipy_with_and_without_ties(seed):
    rng = np.random.default_rng(seed)
    score, truth = rng.normal(size=(2, 9))
    tau = scipy.stats.kendalltau(score, truth).statistic
    assert ranking.kendall_tau(score, truth) == pytest.approx(tau)
    assert ranking.pairwise_accuracy(score, truth) == pytest.approx((1 + tau) / 2)
    score, truth = rng.integers(1, 5, size=(2, 12)).astype(float)
    expected = scipy.stats.kendalltau(score, truth).statistic
    assert ranking.kendall_tau(score, truth) == pytest.approx(expected)
    # Somers' D of the score given the truth leaves out truth ties and halves score ties.
    somers = scipy.stats.somersd(truth, score).statistic
    assert ranking.pairwise_accuracy(score, truth) == pytest.approx((1 + somers) / 2)


@pytest.mark.parametrize("measure", MEASURES)
def test_names_align_and_containers_agree(measure):
    score = {"a": 2.0, "b": 1.0, "c": 4.0, "d": 3.5}
    shuffled = {name: TRUTH[name] for name in "dbca"}
    expected = measure(list(score.values()), list(TRUTH.values()))
    assert measure(score, shuffled) == expected
    assert measure(pd.Series(score), pd.Series(shuffled)) == expected
    assert measure(pd.Series(score), shuffled) == expected
    assert type(expected) is float


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize(
    ("score", "truth", "message"),
    [
        ([1.0, 2.0], [1.0, 2.0, 3.0], "^score: got 2 values for 3 in truth; pass"),
        ([1.0, np.nan], [1.0, 2.0], "^score: got nan at index .1,.; pass finite"),
        ([1.0, 2.0], [1.0, np.inf], "^truth: got inf"),
        ([1.0], [2.0], "^score: got one mechanism; pass two"),
        ({"a": 1.0, "b": 2.0}, {"a": 1.0, "c": 2.0}, "^score: got b, c; name each"),
        (pd.Series([1.0, 2.0], list("aa")), pd.Series([1.0, 2.0], list("aa")), "^score: got a;"),
    ],
)
def test_bad_input_is_refused(measure, score, truth, message):
    with pytest.raises(ValueError, match=message):
        measure(score, truth)


def test_undefined_measures_are_refused():
    with pytest.raises(ValueError, match="^truth: got all values tied"):
        ranking.pairwise_accuracy([1, 2], [3, 3])
    with pytest.raises(ValueError, match="^score: got all values tied"):
        ranking.kendall_tau([1, 1], [3, 4])
    with pytest.raises(ValueError, match="^truth: got -1.0; pass positive losses"):
        ranking.relative_regret([1, 2], [-1, 3])
    with pytest.raises(ValueError, match="^tie_tolerance: got -1.0"):
        ranking.top1([1, 2], [1, 3], tie_tolerance=-1.0)
