"""Amplified multipliers against the analytic Gaussian, dp-accounting's RDP, and known order."""

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp

import momentdp as mdp
from momentdp.amplification import amplified_multiplier, bands_of

IID = mdp.Mechanism.from_toeplitz(steps=20, strategy_coef=[1.0])
BANDED = mdp.Mechanism.from_banded(np.array([[1.0] * 20, [0.5] * 20, [0.25] * 20, [0.1] * 20]))


def test_bands():
    inverse = mdp.Mechanism.from_toeplitz(steps=20, noising_coef=[1.0, -0.5])
    assert (bands_of(IID), bands_of(BANDED), bands_of(inverse)) == (1, 4, None)
    assert bands_of(mdp.Mechanism.from_strategy_matrix(np.eye(20))) is None


def test_whole_data_in_one_step_is_the_gaussian_mechanism():
    once = mdp.Mechanism.from_toeplitz(steps=1, strategy_coef=[1.0])
    found = amplified_multiplier(once, 1.0, 1e-5, data_size=500, batch_size=500)
    assert found == pytest.approx(mdp.noise_multiplier(1.0, 1e-5), rel=5e-3)


@pytest.mark.parametrize("m", [IID, BANDED], ids=["independent", "four bands"])
def test_the_guarantee_holds_by_renyi_accounting(m):
    """RDP is looser: at the multiplier found it gives an epsilon somewhat above the target."""
    found = amplified_multiplier(m, 1.0, 1e-5, data_size=1000, batch_size=50)
    bands = bands_of(m)
    event = dp_accounting.PoissonSampledDpEvent(bands * 0.05, dp_accounting.GaussianDpEvent(found))
    accountant = rdp.RdpAccountant().compose(event, 20 // bands)
    assert 1.0 < accountant.get_epsilon(1e-5) < 1.4


def test_no_amplification_where_none_is_known():
    dense = mdp.Mechanism.from_strategy_matrix(np.eye(20))
    assert amplified_multiplier(dense, 1.0, 1e-5, data_size=1000, batch_size=50) is None
    assert amplified_multiplier(BANDED, 1.0, 1e-5, data_size=199, batch_size=50) is None


def test_rank_counts_it_only_where_it_is_stated():
    pool = {"iid": IID, "banded": BANDED.normalized()}
    case = mdp.Momentum(0.5), [0.1, 1.0], np.full(20, 0.3)
    privacy = {"epsilon": 1.0, "delta": 1e-5, "min_sep": 1, "max_participations": 20}
    plain = mdp.rank(pool, *case, **privacy)
    sampled = mdp.rank(pool, *case, **privacy, sampling={"data_size": 1000, "batch_size": 50})
    assert (plain["noise_multiplier"] == mdp.noise_multiplier(1.0, 1e-5)).all()
    for name, m in pool.items():
        multiplier = amplified_multiplier(m, 1.0, 1e-5, data_size=1000, batch_size=50)
        direct = mdp.damage(m, *case, noise_multiplier=multiplier)
        assert sampled.loc[name, "damage"] == pytest.approx(direct, rel=1e-12)
        assert sampled.loc[name, "sensitivity"] == 1.0
    assert (sampled["damage"] < plain["damage"][sampled.index]).all()


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({"data_size": 10, "batch_size": 50}, "batch_size: got 50; pass at most data_size = 10"),
        ({"data_size": 0, "batch_size": 50}, "data_size: got 0"),
    ],
)
def test_bad_sizes(sampling, message):
    with pytest.raises(ValueError, match=message):
        amplified_multiplier(IID, 1.0, 1e-5, **sampling)


def test_only_add_or_remove_one():
    options = {"epsilon": 1.0, "delta": 1e-5, "neighboring_relation": "replace_one"}
    sampling = {"data_size": 1000, "batch_size": 50}
    with pytest.raises(ValueError, match="neighboring_relation: got 'replace_one'; pass add_or"):
        mdp.rank({"iid": IID}, mdp.Momentum(0.5), [1.0], np.full(20, 0.3), sampling=sampling, **options)  # fmt: skip
