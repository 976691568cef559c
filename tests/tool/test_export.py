"""Exported noise: what comes back, what the rows are, and what a real training loop injects."""

import importlib.util
import json

import numpy as np
import pytest

import momentdp as mdp
from momentdp.tool import choice, export
from momentdp.tool.run import Run
from momentdp.tool.runfile import read_run

STEPS = 16
STRATEGIES = {
    "dense": np.tril(np.random.default_rng(0).uniform(0.1, 1.0, (STEPS, STEPS))) + np.eye(STEPS),
    "toeplitz": np.array([1.0, 0.4, 0.2]),
}


@pytest.fixture(scope="module")
def found():
    rates = mdp.schedules.constant(STEPS, 0.3)
    return choice.choose(
        Run(
            STEPS,
            2.0,
            1e-5,
            mdp.Momentum(0.5),
            rates,
            [0.1, 1.0],
            clipping={"l2_clip_norm": 3.0, "normalize_by": 50},
            participation={"min_sep": 4, "max_participations": 4},
            bands=4,
            mechanisms=["iid", "bisr", "nsr"],
            strategies=STRATEGIES,
        )
    )


@pytest.mark.parametrize("name", ["dense", "toeplitz", "iid", "bisr", "nsr", "synthesised_banded"])
def test_round_trip_and_rows(found, tmp_path, name):
    folder = export.save(found, tmp_path / "noise", name)
    m, stddev = export.load(folder)
    C = found.mechanisms[name].strategy_matrix
    np.testing.assert_allclose(m.strategy_matrix, C, atol=1e-13)
    rows = np.load(folder / "noising_matrix.npy")
    np.testing.assert_allclose(rows @ C, np.eye(STEPS), atol=1e-9)
    sensitivity = found.mechanisms[name].sensitivity(4, 4)
    expected = mdp.noise_multiplier(2.0, 1e-5) * sensitivity * 3.0 / 50
    assert stddev == pytest.approx(expected, rel=1e-12)
    told = (folder / "README.txt").read_text()
    assert f"stddev = {stddev:.9g}" in told and "normalize_by = 50" in told
    assert json.loads((folder / "noise.json").read_text())["sensitivity"] == sensitivity


def test_the_best_unless_named_and_unknown_names_refused(found, tmp_path):
    m, _ = export.load(export.save(found, tmp_path / "best"))
    assert m.name == found.best
    with pytest.raises(ValueError, match="mechanism: got 'other'; choose one of iid"):
        export.save(found, tmp_path / "none", "other")
    assert not (tmp_path / "none").exists()
    with pytest.raises(ValueError, match="give a folder that `momentdp rank --export` wrote"):
        export.load(tmp_path)


def test_rows_of_a_long_run_are_left_out(found, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "LARGEST_ROWS", 8)
    folder = export.save(found, tmp_path, "bisr")
    assert not (folder / "noising_matrix.npy").exists()
    assert "too long for noising_matrix.npy" in (folder / "README.txt").read_text()
    assert export.load(folder)[0].steps == STEPS


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    """The training loop of examples/, with noise that this test exported."""
    example = root / "examples" / "digits.py"
    specification = importlib.util.spec_from_file_location("digits", example)
    digits = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(digits)
    chosen = choice.choose(read_run(root / "examples" / "digits.yaml"))
    folder = export.save(chosen, tmp_path_factory.mktemp("digits") / "noise")
    return chosen, *digits.train(folder, noise_seed=3)


def test_the_loop_trains(trained):
    _, losses, _ = trained
    assert losses[0] > 2.2 and losses[-1] < 0.5


def deviations(noise, covariance):
    """Sample covariance over the coordinates minus ``covariance``, in standard errors."""
    coordinates = noise.shape[1]
    sample = noise @ noise.T / coordinates
    variances = np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2
    return ((sample - covariance) / np.sqrt(variances / coordinates))[np.tril_indices(len(noise))]


def test_injected_noise_has_the_covariance_of_the_report(trained):
    """650 coordinates, 8,256 entries: each within 5 standard errors, one in the mean square."""
    chosen, _, noise = trained
    S = chosen.mechanisms[chosen.best].noising_matrix
    stddev = chosen.ranking.loc[chosen.best, "noise_stddev"]
    z = deviations(noise, stddev**2 * S @ S.T)
    assert np.abs(z).max() < 5 and np.mean(z**2) == pytest.approx(1.0, abs=0.25)
    white = chosen.mechanisms[chosen.best].strategy_matrix @ noise / stddev
    assert np.var(white) == pytest.approx(1.0, abs=0.02)
    assert np.abs(deviations(noise, stddev**2 * np.eye(len(S)))).max() > 20  # not independent
    assert np.abs(deviations(noise, stddev**2 * S.T @ S)).max() > 7  # nor the docstring's S' S


def test_curvature_of_the_example_is_that_of_its_loss(trained):
    """At zero weights all ten classes are equally likely, so H = (X'X / n) (x) (I / 10 - 1 1' / 100)
    with a column of ones in X: its largest value and its trace are known."""
    from sklearn.datasets import load_digits

    order = np.random.default_rng(0).permutation(1797)[:300]
    X = np.column_stack([load_digits().data[order] / 16, np.ones(300)])
    moments = X.T @ X / 300
    spectrum = trained[0].run.spectrum
    assert spectrum.largest == pytest.approx(0.1 * np.linalg.eigvalsh(moments)[-1], rel=1e-4)
    trace = spectrum.multiplicities @ spectrum.eigenvalues
    assert trace == pytest.approx(0.9 * np.trace(moments), rel=0.1)
