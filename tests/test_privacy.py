"""Calibration against published-formula values, the DP inequality itself, and refusals."""

import dp_accounting
import numpy as np
import pytest
from scipy.stats import norm

from momentdp import privacy

# 50-digit root finding on the Balle and Wang equation, independent of dp-accounting.
REFERENCE = {
    (4.0, 1e-5): 1.08116184952023921,
    (1.0, 1e-5): 3.73063163481594,
    (2.0, 1e-5): 1.99381244564354,
    (8.0, 1e-5): 0.600229072198952,
}


@pytest.mark.parametrize(("budget", "sigma"), REFERENCE.items())
def test_noise_multiplier_matches_the_50_digit_values(budget, sigma):
    assert privacy.noise_multiplier(*budget) == pytest.approx(sigma, rel=1e-10)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 3.0, 40.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.3])
def test_noise_multiplier_solves_the_analytic_gaussian_equation(epsilon, delta):
    sigma = privacy.noise_multiplier(epsilon, delta)
    left, right = 0.5 / sigma, epsilon * sigma
    # Balle and Wang (2018), theorem 8, written with survival functions against cancellation.
    spent = norm.sf(right - left) - np.exp(epsilon + norm.logsf(right + left))
    assert spent == pytest.approx(delta, rel=1e-6)


def test_classical_bound_under_noises_at_large_epsilon():
    classical = np.sqrt(2 * np.log(1.25 / 1e-5)) / 9
    assert classical < privacy.noise_multiplier(9.0, 1e-5)


def test_noise_stddev_scales_with_each_factor_once():
    stddev = privacy.noise_stddev(4.0, 1e-5, sensitivity=3.0, l2_clip_norm=0.5, normalize_by=32)
    assert stddev == pytest.approx(1.08116184952023921 * 3.0 * 0.5 / 32, rel=1e-10)


@pytest.mark.parametrize(
    ("relation", "factor"), [("add_or_remove_one", 1), ("replace_special", 1), ("replace_one", 2)]
)
def test_replace_one_doubles_the_noise(relation, factor):
    stddev = privacy.noise_stddev(4.0, 1e-5, neighboring_relation=relation)
    assert stddev == pytest.approx(factor * 1.08116184952023921, rel=1e-10)


def test_relations_are_those_of_dp_accounting():
    for relation in dp_accounting.NeighboringRelation:
        assert privacy.neighboring_factor(relation.name.lower()) in (1.0, 2.0)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, np.nan, np.inf, True])
def test_epsilon_out_of_range_is_refused(epsilon):
    with pytest.raises(ValueError, match=r"^epsilon: got .*; pass a number in \(0, inf\)"):
        privacy.noise_multiplier(epsilon, 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, 1.5, np.nan])
def test_delta_out_of_range_is_refused(delta):
    with pytest.raises(ValueError, match=r"^delta: got .*; pass a number in \(0, 1\)"):
        privacy.noise_stddev(4.0, delta)


@pytest.mark.parametrize("argument", ["sensitivity", "l2_clip_norm", "normalize_by"])
@pytest.mark.parametrize("value", [0.0, -2.0, np.nan])
def test_scales_out_of_range_are_refused(argument, value):
    with pytest.raises(ValueError, match=f"^{argument}: got"):
        privacy.noise_stddev(4.0, 1e-5, **{argument: value})


def test_unknown_relation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="neighboring_relation: got 'swap'; .*replace_one"):
        privacy.noise_stddev(4.0, 1e-5, neighboring_relation="swap")
