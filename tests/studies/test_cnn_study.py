import dataclasses
import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import cnn_tiny
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from momentdp import cli
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies import cnn, cnn_command, cnn_damage, cnn_study, cnn_tables, records
from momentdp.studies.cnn_study import StudySettings
from momentdp.studies.images import digits_images, load_cifar10

CIFAR = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg.tar.xz"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted study: one condition, two mechanisms and no noise, one seed."""
    out = tmp_path_factory.mktemp("study")
    return out, cnn_tiny.run_tiny(out)


def _results(out):
    """All results without the clock's."""
    found = {p.name: json.loads(p.read_text()) for p in sorted(Path(out).glob("*.*.json"))}
    return {
        name: {k: v for k, v in record["result"].items() if k != "seconds"}
        for name, record in found.items()
    }


def test_records_hold_what_the_study_needs(finished):
    out, table = finished
    assert len(table) == 3
    record = json.loads((out / "momentum_cosine.iid.0.json").read_text())
    assert [c["step"] for c in record["result"]["checkpoints"]] == [2, 4]
    assert set(cnn_tables.OUTCOMES) < set(record["result"]["checkpoints"][0])
    assert record["identity"]["data_sha256"] == digits_images().sha256
    assert {"jax", "python", "jax-privacy"} <= set(record["versions"])
    result = record["result"]
    assert result["learning_rate"] * result["lambda_max"] == pytest.approx(0.3)
    assert set(records.read_manifest(out)["sha256"]) == {*_results(out)}
    losses = {name: r["losses"] for name, r in _results(out).items() if "losses" in r}
    first_steps = {loss[0] for loss in losses.values()}
    assert len(first_steps) == 1  # one start and order for all mechanisms
    assert len({loss[-1] for loss in losses.values()}) == 3


def test_killed_study_resumes_to_the_same_records(finished, tmp_path):
    script = [sys.executable, cnn_tiny.__file__, str(tmp_path)]
    child = subprocess.Popen(script, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not list(tmp_path.glob("momentum*.json")):
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait()
    survivors = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*.*.json")}
    (tmp_path / "momentum_cosine.anti.0.tmp").write_text('{"half a rec')
    cnn_tiny.run_tiny(tmp_path)
    assert _results(tmp_path) == _results(finished[0])
    assert all(p.stat().st_mtime_ns == when for p, when in survivors.items())


def test_scheduler_gives_the_same_records(finished, tmp_path):
    distributed = pytest.importorskip("distributed")
    local = {"n_workers": 1, "threads_per_worker": 1, "processes": False}
    with distributed.LocalCluster(**local, dashboard_address=None) as cluster:
        cnn_tiny.run_tiny(tmp_path, scheduler=cluster.scheduler_address)
    assert _results(tmp_path) == _results(finished[0])


def test_damaged_and_foreign_records_are_refused_by_name(finished, tmp_path, monkeypatch):
    name = "momentum_cosine.iid.0.json"
    for file in finished[0].glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (tmp_path / name).read_text()
    for damage in (text[: len(text) // 2], text.replace('"seed": 0', '"seed": 1'), "[]", ""):
        (tmp_path / name).write_text(damage)
        with pytest.raises(ValueError, match=f"{name}: the record is damaged; delete it"):
            cnn_tiny.run_tiny(tmp_path)
    (tmp_path / name).write_text(text)
    other = cnn_study.StudySettings(**{**vars(cnn_tiny.SETTINGS), "noise_multiplier": 2.0})
    monkeypatch.setattr(cnn_tiny, "SETTINGS", other)
    with pytest.raises(ValueError, match="other settings .noise_multiplier 1.08.* and 2.0 now"):
        cnn_tiny.run_tiny(tmp_path)


def test_bad_settings_are_refused_before_anything_runs(tmp_path):
    def study(**changes):
        settings = cnn_study.StudySettings(**{**vars(cnn_tiny.SETTINGS), **changes})
        cnn_study.run_study(settings, digits_images(), cnn_tiny.MECHANISMS, tmp_path, seeds=(0,))

    with pytest.raises(ValueError, match="count: got 1797 examples"):
        study(batch_size=1000)
    with pytest.raises(ValueError, match="mechanisms: got 'iid' of"):
        study(steps=5)
    with pytest.raises(ValueError, match="conditions: got sgd"):
        cnn_tiny.run_tiny(tmp_path, conditions=("sgd",))
    assert not list(tmp_path.iterdir())
    start = {"lambda_max": 100.0, "clip_norm": 1.0}
    shared = (cnn_study.StudySettings(learning_rate=0.02), digits_images())
    with pytest.raises(ValueError, match="eta lambda_max = 2 .seed 0, sgd_constant.*unstable"):
        cnn_study.training_run(shared, 0, "sgd_constant", np.eye(4), start)


def _made_up():
    rng = np.random.default_rng(0)
    rows = [
        {"condition": c, "mechanism": m, "seed": s, "test_accuracy": a + 0.01 * rng.normal(),
         "test_loss": 2 - a + 0.01 * rng.normal()}
        for c in ("one", "two") for m, a in (("x", 0.2), ("y", 0.22), ("no_noise", 0.9))
        for s in range(5)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_table_and_paired_tests_against_scipy():
    frame = _made_up()
    table = cnn_tables.best_and_worst(frame)
    one = frame[frame.condition == "one"].pivot(
        index="seed", columns="mechanism", values="test_accuracy"
    )
    assert table.loc["one", "best"] == "y" and table.loc["one", "worst"] == "x"
    assert table.loc["one", "spread"] == pytest.approx(one.y.mean() - one.x.mean())
    errors = [one[m].std(ddof=1) / np.sqrt(5) for m in "xy"]
    assert table.loc["one", "combined_se"] == pytest.approx(np.sqrt(sum(np.square(errors))))
    assert table.loc["one", "paired_se"] == pytest.approx(stats.sem(one.y - one.x))
    assert cnn_tables.best_and_worst(frame, "test_loss").loc["two", "best"] == "y"
    far = frame["test_loss"].where(frame.mechanism == "x", frame["test_loss"] - 1)
    counted = cnn_tables.count_resolved(frame.assign(test_loss=far))
    assert counted.loc["all"].tolist()[:2] == [2, 2] and counted.loc["one"].tolist()[:2] == [1, 1]
    p = stats.ttest_rel(one.x, one.y).pvalue  # of the two conditions, the one alone resolved
    assert counted["resolved in accuracy"].tolist() == [0, 1, 1] and p > 0.05

    tests = cnn_tables.paired_tests(frame, "test_accuracy")
    row = tests[(tests.condition == "one") & (tests["first"] == "x") & (tests["second"] == "y")]
    expected = stats.ttest_rel(one.x, one.y)
    assert row.t.item() == pytest.approx(expected.statistic)
    assert row.p.item() == pytest.approx(expected.pvalue)
    assert len(tests) == 6
    # Holm by its definition: the k-th smallest of m times (m - k), made monotone.
    holm = np.minimum(np.maximum.accumulate(np.sort(tests.p) * np.arange(6, 0, -1)), 1)
    np.testing.assert_allclose(np.sort(tests.p_holm), holm)


def test_cost_of_noise_and_power_by_hand():
    frame = _made_up()
    one = frame[frame.condition == "one"].pivot(
        index="seed", columns="mechanism", values="test_loss"
    )
    gap = (one.x + one.y) / 2 - one.no_noise
    cost = cnn_tables.cost_of_noise(frame).loc["one"]
    assert cost["difference"] == pytest.approx(gap.mean())
    assert cost["standard error"] == pytest.approx(stats.sem(gap))
    found = cnn_tables.seeds_by_pair(frame, "one", pd.Series({"x": 0.014, "y": 0.01})).loc["y", "x"]
    assert found["noise of a seed"] == pytest.approx((one.x - one.y).std())
    assert found["predicted"] == pytest.approx(0.004)
    damages = pd.Series({(c, m): d for c in ("one", "two") for m, d in (("x", 0.014), ("y", 0.01))})
    easiest = cnn_tables.easiest_pairs(frame, damages)
    assert easiest.loc["one", "seeds"] == found["seeds"]
    assert easiest.loc["two", ["first", "second"]].tolist() == ["y", "x"]
    # The power of a two-sided z test with so many pairs, less the two: above 80%, with one less below.
    pairs = found["seeds"] - 2
    for count, enough in ((pairs, True), (pairs - 1, False)):
        shift = 0.004 / (found["noise of a seed"] / np.sqrt(count))
        assert (stats.norm.sf(stats.norm.ppf(0.975) - shift) >= 0.8) == enough


def test_only_whole_seeds_enter_table_4(finished, tmp_path):
    for file in finished[0].glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    for mechanism in ("iid", "anti"):  # the second seed lacks the run without noise
        identity = {"condition": "momentum_cosine", "mechanism": mechanism, "seed": 1}
        known = json.loads((tmp_path / f"momentum_cosine.{mechanism}.0.json").read_text())
        records.write_record(
            tmp_path / f"momentum_cosine.{mechanism}.1.json", identity, known["result"]
        )
    assert len(cnn_tables.load_records(tmp_path)) == 5
    assert set(cnn_tables.load_records(tmp_path, whole=True)["seed"]) == {0}


def whole_seeds(condition):
    """Seeds of a condition that have a file of each mechanism and of no noise."""
    names = [*cnn_tables.POOL, cnn_tables.NO_NOISE]
    folder = cnn_tables.RESULTS
    return [
        k for k in range(5) if all((folder / f"{condition}.{n}.{k}.json").exists() for n in names)
    ]


def raw(name):
    return json.loads((cnn_tables.RESULTS / f"{name}.json").read_text())["result"]


def test_costs_along_the_run_from_the_raw_records():
    def cost(seed, checkpoint):
        noisy, quiet = (
            raw(f"momentum_constant.{name}.{seed}")["checkpoints"] for name in ("iid", "no_noise")
        )
        return noisy[checkpoint]["test_loss"] - quiet[checkpoint]["test_loss"]

    seeds = whole_seeds("momentum_constant")
    found = cnn_damage.excess_along("momentum_constant", "test_loss")
    assert found.loc[40, "iid"] == pytest.approx(np.mean([cost(k, 1) for k in seeds]), rel=1e-12)
    assert set(found.columns) == set(cnn_tables.POOL)
    table = cnn_damage.against_damage(cnn_tables.load_records(whole=True)).loc["momentum_constant"]
    ends = [cost(k, -1) for k in seeds]
    assert table.loc["iid", "observed"].tolist() == pytest.approx(ends, rel=1e-12)
    beside = cnn_damage.by_condition(cnn_damage.against_damage(cnn_tables.load_records(whole=True)))
    assert beside.loc["momentum_constant", "iid"]["observed"] == pytest.approx(np.mean(ends))
    assert beside.loc["momentum_constant", "iid"]["standard error"] == pytest.approx(
        stats.sem(ends)
    )
    runs, mean = cnn_tables.load_records(whole=True), table["predicted"].groupby("mechanism").mean()
    every = cnn_tables.seeds_by_pair(runs, "momentum_constant", mean)["seeds"]
    one = runs[runs.condition == "momentum_constant"]
    mean = pd.concat({"momentum_constant": mean})
    easiest = cnn_tables.easiest_pairs(one, mean).loc["momentum_constant", "seeds"]
    assert len(every) == 10 and easiest == every.min() < every.max()
    others = table["observed"].drop("iid", level="mechanism").mean()
    found = beside.loc["momentum_constant", "mean of the others"]["observed"]
    assert found == pytest.approx(others)
    by_hand = [damage_of_independent_noise(k) for k in seeds]
    assert table.loc["iid", "predicted"].tolist() == pytest.approx(by_hand, rel=1e-9)


def test_both_signs_of_the_noise_from_the_raw_records():
    def end(name):
        return raw(name)["checkpoints"][-1]["test_loss"]

    quiet, drawn = end("momentum_constant.no_noise.3"), end("momentum_constant.iid.3")
    turned = end("mirrored/momentum_constant.iid.3")
    found = cnn_damage.by_sign_of_noise("momentum_constant").loc[3]
    assert found["curved"] == pytest.approx((drawn + turned) / 2 - quiet, rel=1e-9)
    assert found["slope"] == pytest.approx((drawn - turned) / 2, rel=1e-9)
    assert found["predicted"] == pytest.approx(damage_of_independent_noise(3), rel=1e-9)


def damage_of_independent_noise(seed):
    """By the recurrence of heavy ball, one unit impulse for each mode."""
    known = raw(f"calibration.{seed}")
    values, weights = np.array(known["eigenvalues"]), np.array(known["multiplicities"])
    error, velocity, squares = np.zeros_like(values), np.ones_like(values), 0.0
    for _ in range(100):
        error = error - 0.00229 * velocity
        squares = squares + error**2
        velocity = 0.9 * velocity + values * error
    scale = 1.08116184952 * known["clip_norm"] / 400
    return 0.5 * scale**2 * np.sum(weights * values * squares)


@pytest.mark.skipif(not CIFAR.exists(), reason="needs the shared copy of CIFAR-10")
def test_ten_steps_of_a_committed_record_come_back():
    path = cnn_tables.RESULTS / "momentum_constant.dense.0.json"
    record, start = records.read_record(path), cnn_tables.RESULTS / "calibration.0.json"
    identity = json.loads(path.read_text())["identity"]
    fields = {field.name: identity[field.name] for field in dataclasses.fields(StudySettings)}
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    images = load_cifar10(CIFAR)
    assert images.sha256 == record["data_sha256"]
    noising = catalogue(record["steps"], pool=["dense"])["dense"].noising_matrix
    arguments = cnn_study.prepared(
        (StudySettings(**fields), images), 0, "momentum_constant", noising,
        records.read_record(start),
    )  # fmt: skip
    for name in ("shards", "noise", "learning_rates"):
        arguments[name] = arguments[name][:10]
    again = cnn.train(**arguments)
    np.testing.assert_allclose(again.losses, record["losses"][:10], rtol=1e-4)
    np.testing.assert_allclose(again.clipped, record["clipped"][:10], atol=2 / 400)


def test_command_explains_itself_and_refuses_missing_data(tmp_path, capsys):
    from argparse import ArgumentParser

    from momentdp.studies.cnn_command import add_study_parser

    parser = ArgumentParser()
    add_study_parser(parser.add_subparsers())
    with pytest.raises(SystemExit) as stop:
        parser.parse_args(["cnn", "--help"])
    assert stop.value.code == 0
    assert "resumes" in capsys.readouterr().out
    words = f"cnn --data {tmp_path / 'none'} --out {tmp_path} --steps 4 --mechanisms iid no_noise"
    parsed = parser.parse_args(words.split())
    with pytest.raises(ValueError, match="path: got .* does not exist"):
        parsed.call(parsed)


@pytest.mark.parametrize("mirrored", [False, True])
def test_command_asks_for_what_the_line_says(finished, tmp_path, monkeypatch, capsys, mirrored):
    asked = {}

    def run_study(settings, images, mechanisms, out, **how):
        asked.update(settings=settings, images=images, mechanisms=mechanisms, out=out, **how)
        return finished[1]

    monkeypatch.setattr(cnn_command, "run_study", run_study)
    (tmp_path / "calibration.0.json").write_text("{}")
    line = [
        "study",
        "cnn",
        "--data",
        "digits",
        "--out",
        str(tmp_path),
        "--steps",
        "5",
        "--seeds",
        "2",
    ]
    line += ["--epsilon", "1", "--mechanisms", "iid", "no_noise"] + ["--mirrored"] * mirrored
    assert cli.main(line) == 0
    assert "paired tests" in capsys.readouterr().out
    assert asked["seeds"] == (0, 1) and asked["settings"].checkpoints == (1, 2, 3, 4, 5)
    assert asked["settings"].noise_multiplier == pytest.approx(3.73063163481594, rel=1e-9)
    if mirrored:  # every draw of noise turned, and nothing without noise to run again
        assert asked["out"] == tmp_path / "mirrored" and [*asked["mechanisms"]] == ["iid"]
        np.testing.assert_array_equal(asked["mechanisms"]["iid"], -np.eye(5))
        assert (asked["out"] / "calibration.0.json").exists()
    else:
        assert not asked["mechanisms"]["no_noise"].any() and asked["out"] == tmp_path
        np.testing.assert_array_equal(asked["mechanisms"]["iid"], np.eye(5))
