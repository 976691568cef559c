"""The tables of a choice against damages, curves and expected losses computed one by one."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import momentdp as mdp
from momentdp.damage import damage_curve
from momentdp.tool import choice, designs, export, words
from momentdp.tool.run import Run

STEPS = 24
RATES = mdp.schedules.cosine(STEPS, 0.4)
SPECTRUM = mdp.Spectrum([0.1, 0.5, 1.0], [10.0, 3.0, 1.0])
RUN = Run(
    STEPS,
    2.0,
    1e-5,
    mdp.Momentum(0.9),
    RATES,
    SPECTRUM,
    clipping={"l2_clip_norm": 2.0, "normalize_by": 32.0},
    bands=4,
    mechanisms=["iid", "bisr", "nsr"],
    strategies={"mine": np.array([1.0, 0.3])},
    initial_error=0.2,
    grid={"momentum": [0.0, 0.9], "learning_rate_factor": [0.5, 1.0]},
)


@pytest.fixture(scope="module")
def found():
    return choice.choose(RUN)


def noise(found, name):
    """Noise multiplier of `damage` for one mechanism: units of the gradient, sensitivity apart."""
    return found.ranking.loc[name, "noise_stddev"] / found.ranking.loc[name, "sensitivity"]


def test_ranking_is_that_of_rank(found):
    options = {"l2_clip_norm": 2.0, "normalize_by": 32.0}
    case = mdp.Momentum(0.9), SPECTRUM, RATES
    table = mdp.rank(found.mechanisms, *case, epsilon=2.0, delta=1e-5, **options)
    pd.testing.assert_frame_equal(found.ranking[table.columns], table)
    sigma = mdp.noise_multiplier(2.0, 1e-5) * 2 / 32
    assert noise(found, "mine") == pytest.approx(sigma, rel=1e-12)
    assert {"mine", "synthesised_dense", "synthesised_robust"} <= set(table.index)
    assert found.ranking.loc["iid", "noise_memory"] == 0
    assert found.ranking.loc["bisr", "noise_memory"] == 3
    assert found.ranking.loc[found.streaming, "noise_memory"] < 4


def test_robustness_is_the_damage_with_other_inputs(found):
    settings = {
        "curvature x 2": (mdp.Momentum(0.9), SPECTRUM.scaled(2.0)),
        "curvature / 2": (mdp.Momentum(0.9), SPECTRUM.scaled(0.5)),
        "more momentum (0.95)": (mdp.Momentum(0.95), SPECTRUM),
        "less momentum (0.8)": (mdp.Momentum(0.8), SPECTRUM),
    }
    assert [*found.robustness.columns] == ["as given", *settings]
    for name, (optimizer, spectrum) in settings.items():
        truth = {n: mdp.damage(m, optimizer, spectrum, RATES) for n, m in found.mechanisms.items()}
        truth = pd.Series(truth) / min(truth.values())
        column = found.robustness[name]
        np.testing.assert_allclose(column, truth[column.index], rtol=1e-6)
    assert found.ranking["worst_relative"].to_dict() == found.robustness.max(axis=1).to_dict()


def test_on_the_way_is_a_mean_of_the_damage_curve(found):
    """Sixteen steps, spread evenly, of the curve that the columns of C^-1 give."""
    at = np.ceil((np.arange(16) + 0.5) * STEPS / 16).astype(int) - 1
    way = {
        name: damage_curve(m, mdp.Momentum(0.9), SPECTRUM, RATES)[at].mean()
        for name, m in found.mechanisms.items()
    }
    way = pd.Series(way)
    column = found.trajectory["on the way"]
    np.testing.assert_allclose(column, (way / way.min())[column.index], rtol=1e-6)


def test_expected_losses_one_by_one(found):
    assert set(found.expected["factor"]) == {0.5, 1.0}
    for row in found.expected.sample(12, random_state=0).itertuples():
        value = mdp.expected_loss(
            found.mechanisms[row.mechanism],
            mdp.Momentum(row.momentum),
            SPECTRUM,
            row.factor * RATES,
            initial_error=np.full(3, 0.2),
            noise_multiplier=noise(found, row.mechanism),
        )
        assert row.expected_loss == pytest.approx(value, rel=1e-7)
        assert row.bias + row.damage == pytest.approx(row.expected_loss)
    pairs = words.best_pairs(found)
    assert pairs["best"].iloc[0] == "*" and pairs["expected_loss"].is_monotonic_increasing
    lowest = found.expected["expected_loss"].min()
    assert words.grid(found, pairs.index[0]).min().min() == pytest.approx(lowest)


def test_words_say_what_the_tables_say(found):
    told = words.recommendation(found)
    assert f"Use `{found.best}`" in told and "H.6" in told
    assert words.settings(found)["clipping"] == "norm 2, sum divided by 32"
    assert "not counted" in words.settings(found)["amplification"]
    assert all(warning in told for warning in found.warnings)
    home = found.expected.query("momentum == 0.9 and factor == 1").set_index("mechanism")
    share = 100 * home.loc[found.best, "damage"] / home.loc[found.best, "expected_loss"]
    assert words.noise_share(found) == pytest.approx(share)


def test_a_choice_for_the_last_step_alone_is_warned_of(found):
    """A table in which the first is far worse on the way, and one in which it is not."""
    way = found.trajectory.copy()
    way.loc[found.best, "on the way"] = 3.0
    calm = found.robustness * 0 + 1.0
    ranking = found.ranking.assign(worst_relative=1.0)
    odd = replace(found, trajectory=way, robustness=calm, ranking=ranking)
    (warning,) = choice._disagreements(odd)
    assert "on the way its damage is 3 times" in warning
    assert list(choice._disagreements(replace(odd, trajectory=way * 0 + 1.0))) == []


def test_without_a_start_there_is_no_expected_loss(tmp_path):
    short = replace(RUN, initial_error=None, mechanisms=["iid"], strategies={}, clipping={})
    found = choice.choose(short)
    assert found.expected.empty and words.best_pairs(found).empty
    assert "start: {loss" in words.matters(found)
    assert words.settings(found)["clipping"] == "norm 1, sum divided by 1"
    told = json.loads((export.save(found, tmp_path / "noise") / "noise.json").read_text())
    assert (told["l2_clip_norm"], told["normalize_by"]) == (1.0, 1.0)
    assert told["participation"] == {"max_participations": 1}
    assert "peak 0.4, first 0.4, last" in words.settings(found)["learning rate"]


def test_optax_code_is_compared_too():
    """Rates only: code names no momentum. Twice the curvature is unstable here: no column."""
    import optax

    chain = mdp.LinearOptimizer.from_optax(lambda rate: optax.sgd(rate, momentum=0.5))
    rates = np.full(STEPS, 1.8)
    run = replace(RUN, optimizer=chain, learning_rates=rates, mechanisms=["iid"], grid={})
    found = choice.choose(run)
    assert [*found.robustness.columns] == ["as given", "curvature x 2", "curvature / 2"]
    assert found.robustness["curvature x 2"].isna().all()
    assert "synthesised_robust" not in found.mechanisms
    assert found.expected["momentum"].isna().all()
    direct = mdp.damage(found.mechanisms["iid"], mdp.Momentum(0.5), SPECTRUM, rates)
    scale = found.ranking.loc["iid", "noise_stddev"] ** 2
    assert found.ranking.loc["iid", "damage"] == pytest.approx(direct * scale, rel=1e-9)
    assert "peak rate" in words.recommendation(found) and "has momentum" not in words.matters(found)
    assert "optax" in words.settings(found)["optimizer"] and words.grid(found, "iid").shape[0] == 1


def test_epochs_keep_the_bands_of_designs_within_min_sep():
    epochs = {"min_sep": 3, "max_participations": 8}
    run = replace(RUN, participation=epochs, bands=6, mechanisms=["iid", "nsr"], strategies={})
    found = choice.choose(run)
    for name in ("synthesised_banded", "synthesised_toeplitz"):
        m = found.mechanisms[name]
        assert np.abs(np.tril(m.strategy_matrix, -3)).max() == 0
        assert found.ranking.loc[name, "sensitivity"] == pytest.approx(np.sqrt(8) * m.sensitivity())
    assert found.ranking.loc["nsr", "sensitivity"] > np.sqrt(8)
    assert (found.ranking["relative_to_floor"] >= 1).all()


def test_a_design_is_solved_once_and_read_back(monkeypatch, tmp_path):
    monkeypatch.setenv("MOMENTDP_CACHE", str(tmp_path))
    first = designs.for_run(RUN)
    monkeypatch.setattr(designs, "synthesize", None)
    again = designs.for_run(RUN)
    assert list(first) == list(again)
    for name in first:
        same = again[name].mechanism.strategy_matrix
        np.testing.assert_allclose(first[name].mechanism.strategy_matrix, same, rtol=1e-12)
        assert first[name].objective == again[name].objective
    assert 0 <= again["synthesised_banded"].gap < 1e-5


def test_no_curvature_is_no_damage_for_all():
    run = Run(8, 1.0, 1e-5, mdp.Momentum(0.5), np.full(8, 0.1), [0.0], mechanisms=["iid", "nsr"])
    found = choice.choose(run)
    assert (found.ranking["rank"] == 1).all() and (found.ranking["damage"] == 0).all()
    assert (found.ranking[["relative_to_best", "relative_to_floor"]] == 1).all(axis=None)


def test_long_runs_build_no_square_matrix():
    """5,000 steps: a matrix of that size takes 200 MB, and a dense design an hour."""
    rates = mdp.schedules.cosine(5000, 0.1)
    found = choice.choose(
        Run(5000, 2.0, 1e-5, mdp.Momentum(0.9), rates, [0.1, 1.0], initial_error=1.0)
    )
    assert "synthesised_inverse_banded" in found.ranking.index
    assert (
        found.ranking["damage"].idxmax() == "iid" and (found.ranking["relative_to_floor"] > 1).all()
    )
    assert len(set(found.expected["mechanism"])) == 4
