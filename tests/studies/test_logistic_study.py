"""The records of ten data sets: hashes, resumption, refusals, and a part of them run again."""

import json
import re
import shutil

import numpy as np
import pytest

from momentdp import cli
from momentdp.studies import logistic, logistic_study, logistic_tables
from momentdp.studies import logistic_analysis as analysis
from momentdp.studies.logistic_task import make_task


def test_records_are_those_of_their_manifest():
    manifest = json.loads((logistic_study.RESULTS / "manifest.json").read_text())
    assert manifest["settings"] == logistic_study.SETTINGS
    assert manifest["data_seeds"] == list(range(10))
    kept = {path.name for path in logistic_study.RESULTS.glob("*-*.json")}
    assert kept == set(manifest["sha256"]) and len(kept) == 40
    for kind in logistic_study.KINDS:
        assert list(logistic_study.load(kind)) == list(range(10))


def test_a_changed_record_is_refused(tmp_path):
    folder = shutil.copytree(logistic_study.RESULTS, tmp_path / "copy")
    path = folder / "runs-3.json"
    path.write_text(path.read_text().replace("L0 / dense", "L0 / bandmf", 1))
    with pytest.raises(ValueError, match="runs-3.json: got SHA-256"):
        logistic_study.load("runs", folder)


def test_the_default_study_run_again_has_its_recorded_runs():
    """Data set 0, L0 to L3, eight mechanisms and Adam's NoiseCurve, 30 seeds, no record read."""
    task, recorded = make_task(0), logistic_study.outcomes().loc[0]
    cases = {name: logistic.conditions(task)[name] for name in logistic.PAPER}
    pool = logistic.native_pool(task, pool=(*logistic.RIVALS, logistic_tables.OWN))
    again = logistic.study(task, pool, cases, logistic_study.NOISE_SEEDS)
    np.testing.assert_allclose(recorded.loc[again.index], again, rtol=2e-5, atol=1e-8)
    found = logistic_tables.noisecurve_table(again).xs(logistic_tables.OWN, level="noisecurve")
    assert found["rank"].tolist() == [1, 9, 9, 9]  # the table of the chapter and of the ledger


def test_recorded_predictions_and_sources_run_again():
    task = make_task(2)
    condition = logistic.conditions(task)["L2'"]
    pool = logistic.native_pool(task, pool=("dense", "bandinv_max"))
    again = analysis.predict(task, pool, condition)
    recorded = logistic_study.predicted().loc[(2, "L2'")]
    np.testing.assert_allclose(recorded.loc[again.index], again, rtol=1e-4)
    sources = logistic_study.quiet().loc[(2, "L2'")]
    assert sources.to_dict() == pytest.approx(analysis.quiet_sources(task, condition), rel=1e-6)


@pytest.fixture
def small(monkeypatch):
    """A study of two data sets that costs nothing but its bookkeeping."""
    calls = []

    def kind(data_seed, **settings):
        calls.append(data_seed)
        return {"found": data_seed + settings["epsilon"]}

    monkeypatch.setattr(logistic_study, "KINDS", {"only": kind})
    return calls


def test_an_interrupted_study_resumes(small, tmp_path):
    logistic_study.complete(tmp_path, range(3))
    before = (tmp_path / "manifest.json").read_bytes()
    (tmp_path / "only-1.json").unlink()
    logistic_study.complete(tmp_path, range(3))
    assert small == [0, 1, 2, 1]
    assert json.loads(before)["data_seeds"] == [0, 1, 2]
    assert logistic_study.of_data_sets("only", "found", tmp_path).to_dict() == {
        0: 4.0,
        1: 5.0,
        2: 6.0,
    }


def test_records_of_other_settings_are_refused(small, tmp_path):
    logistic_study.complete(tmp_path, range(1))
    with pytest.raises(ValueError, match="only-0.json: a record of other settings .epsilon 4.0"):
        logistic_study.complete(tmp_path, range(1), epsilon=1.0)


def test_frozen_pairs_keep_their_bytes_and_their_prediction():
    """One case by hand: its frozen C, the paper's formula through `damage`."""
    from momentdp.damage import damage
    from momentdp.dynamics.optimizers import Momentum
    from momentdp.mechanisms.mechanism import Mechanism
    from momentdp.studies import registry

    case = json.loads((registry.FROZEN / "registry.json").read_text())[1]
    with np.load(registry.FROZEN / "arrays.npz") as arrays:
        first, second = (
            Mechanism.from_strategy_matrix(arrays[case["arrays"][n]]) for n in ("first", "second")
        )
        rates = arrays[case["arrays"]["rates"]]
    task = make_task(4)
    modes = np.linalg.eigvalsh(task.calibration_hessian())
    condition = logistic.Condition(Momentum(case["momentum"]), rates / modes[-1])
    sigma = logistic.noise_stddev(task)
    predicted = [
        damage(m, condition.optimizer, modes, condition.learning_rates, noise_multiplier=sigma)
        for m in (first, second)
    ]
    recorded = logistic_study.frozen_cases().loc[(4, case["id"], "rates")]
    assert recorded["calibration"] == pytest.approx(predicted[0] - predicted[1], rel=1e-4)
    pair = {"first": first, "second": second}
    runs = logistic.study(task, pair, {"": condition}, logistic_study.NOISE_SEEDS)
    gap = runs.iloc[0] - runs.iloc[1]
    assert recorded["difference"] == pytest.approx(gap.mean(), rel=1e-4, abs=1e-8)
    assert recorded["se"] == pytest.approx(gap.sem(), rel=1e-4)


def test_a_frozen_case_runs_again_to_what_is_recorded(monkeypatch):
    from momentdp.studies import registry

    monkeypatch.setattr(registry, "SIZE", 1)
    again = logistic_study.frozen(4, **logistic_study.SETTINGS)["frozen"]
    assert len(again) == 2
    recorded = logistic_study.load("frozen")[4]["frozen"]
    for end, numbers in again.items():
        found, kept = (np.array(text.split(), float) for text in (numbers, recorded[end]))
        np.testing.assert_allclose(found, kept, rtol=1e-4, atol=1e-8)


def test_one_command_resumes_and_prints_the_tables(tmp_path, capsys):
    folder = shutil.copytree(logistic_study.RESULTS, tmp_path / "copy")
    command = ["study", "logistic", "--out", str(folder), "--data-sets"]
    assert cli.main([*command, "2"]) == 0
    printed = capsys.readouterr().out
    (ranks,) = re.findall(r"^L1 .*$", printed.split("Kendall")[0], re.MULTILINE)
    assert ranks.endswith("9 9")
    assert json.loads((folder / "manifest.json").read_text())["data_seeds"] == [0, 1]
    assert cli.main([*command, "0"]) == 2
    assert cli.main([*command, "1", "--epsilon", "1"]) == 2
    assert "a record of other settings (epsilon 4.0 there and 1.0 now)" in capsys.readouterr().err
