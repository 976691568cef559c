"""The frozen cases: what the protocol asks of them, and everything that has to be refused."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import pandas as pd
import pytest

import momentdp as mdp
from momentdp import cli
from momentdp.studies import registry, simulator, validation

# The SHA-256 of the registry that was committed before the simulation.
FROZEN_SHA256 = "8c3fc41d3c2d280adf29f32d15bd0a1064f2322761361157143538c471ec2016"


@pytest.fixture
def copy(tmp_path):
    """A copy of the registry that may be spoilt."""
    return shutil.copytree(registry.FROZEN, tmp_path / "registry")


def rewrite(folder, change, name="registry.json"):
    """Change the parsed registry and record the hash of the result, as a forger would."""
    rows = json.loads((folder / "registry.json").read_text())
    change(rows)
    (folder / "registry.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    seal(folder)


def seal(folder):
    names = ("registry.json", "arrays.npz")
    lines = [f"{hashlib.sha256((folder / n).read_bytes()).hexdigest()}  {n}\n" for n in names]
    (folder / "registry.sha256").write_text("".join(lines))


def test_the_frozen_registry_holds():
    assert mdp.registry.verify() is None
    table = mdp.registry.load()
    assert table.attrs["sha256"]["registry.json"] == FROZEN_SHA256


def test_cases_are_as_many_and_as_diverse_as_the_protocol_asks():
    table = mdp.registry.load()
    assert table["register"].value_counts().to_dict() == {"primary": 12, "control": 12}
    primary = table[table["register"] == "primary"]
    assert primary["spectrum"].nunique() >= 4
    assert primary["schedule"].nunique() >= 4
    pairs = [frozenset(pair) for pair in primary[["first", "second"]].to_numpy()]
    assert len(set(pairs)) >= 5
    assert max(Counter(name for pair in pairs for name in pair).values()) <= 4
    assert (primary["arm"] == "b").sum() >= 4
    assert (primary[["native", "margin"]] > 0.10).all(axis=None)
    assert (table[["native", "margin"]] > 0.05).all(axis=None)


def candidate(**changes):
    row = {"arm": "a", "el": 0.1, "momentum": 0.9, "schedule": "cosine", "spectrum": "spike"}
    row |= {"pair": "bisr, nsr", "first": "bisr", "second": "nsr", "native": 0.5, "margin": 0.2}
    return row | changes


def test_the_rule_of_choice_by_hand(monkeypatch):
    """Lots in order; a repeated pair and a third case of one step size are passed over."""
    monkeypatch.setattr(registry, "SIZE", 3)
    monkeypatch.setattr(registry, "REGISTERS", {"primary": (0.10, np.inf)})
    rows = [
        candidate(),
        candidate(el=0.2),  # the same pair again
        candidate(pair="dense, nsr", first="dense"),
        candidate(pair="iid, nsr", first="iid"),  # a third one with el = 0.1
        candidate(pair="iid, sqrt", first="iid", second="sqrt", el=0.4, schedule="constant"),
    ]
    table = pd.DataFrame(rows).assign(smaller=0.2)
    chosen = registry.choose(table)
    assert [case["first"] for case in chosen] == ["bisr", "dense", "iid"]
    assert [case["id"] for case in chosen] == ["primary-01", "primary-02", "primary-03"]
    with pytest.raises(ValueError, match="candidates: got 2 cases for primary; widen"):
        registry.choose(table.iloc[:4])


def test_a_lot_depends_on_the_description_alone():
    assert registry.describe(candidate()) == "a | 0.1 | 0.9 | cosine | spike | bisr | nsr"


@pytest.mark.parametrize("name", ["registry.json", "arrays.npz"])
def test_one_changed_byte_is_refused(copy, name):
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(bytes(content))
    for read in (registry.verify, registry.load, registry.damages):
        with pytest.raises(ValueError, match=f"{name}: got SHA-256 .*restore"):
            read(copy)
    with pytest.raises(ValueError, match=f"{name}: got bytes of another SHA-256"):
        simulator.simulate_registry(copy, copy / "out")


def other_margin(rows):
    rows[2]["margin"] *= 1.001


def below_threshold(rows):
    rows[13]["register"] = "primary"


def twice(rows):
    rows.append(rows[0] | {"id": "control-13"})


def same_id(rows):
    rows[1]["id"] = "primary-01"


FORGERIES = {
    "margin": (other_margin, "case primary-03, margin: got 1.16.*; its bytes give 1.163"),
    "threshold": (below_threshold, "case control-02, .*: got 0.0.*, and 0.1 is the least"),
    "duplicate": (twice, "case control-13: got a duplicate"),
    "id": (same_id, "case primary-01: got a duplicate"),
    "mechanism": (lambda r: r[3].update(first="nsrr"), "case primary-04, first: got 'nsrr'; use"),
    "schedule": (lambda r: r[3].update(schedule="cos"), "case primary-04, schedule: got 'cos'"),
    "spectrum": (lambda r: r[3].update(spectrum="flat"), "case primary-04, spectrum: got 'flat'"),
    "arm": (lambda r: r[3].update(arm="d"), "case primary-04, arm: got 'd'"),
    "another schedule": (
        lambda r: r[3].update(schedule="constant"),
        "case primary-04, native_rates: got other numbers than its names say",
    ),
    "exchanged": (
        lambda r: r[3]["arrays"].update(first=r[3]["arrays"]["second"]),
        "case primary-04, native",
    ),
    "array": (
        lambda r: r[3]["arrays"].update(first="0" * 64),
        "case primary-04, first: got bytes of another hash",
    ),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_forgeries_are_refused_by_the_name_of_the_case(copy, forgery):
    change, message = FORGERIES[forgery]
    rewrite(copy, change)
    with pytest.raises(ValueError, match=message):
        registry.verify(copy)


def test_another_layout_is_refused(copy):
    rows = json.loads((copy / "registry.json").read_text())
    (copy / "registry.json").write_text(json.dumps(rows))
    seal(copy)
    with pytest.raises(ValueError, match="registry.json: got another layout"):
        registry.verify(copy)


def test_changed_numbers_under_the_old_hash_are_refused(copy):
    with np.load(copy / "arrays.npz") as stored:
        arrays = dict(stored)
    name = json.loads((copy / "registry.json").read_text())[0]["arrays"]["second"]
    arrays[name] = arrays[name] * (1 + 1e-15)
    np.savez_compressed(copy / "arrays.npz", **arrays)
    seal(copy)
    with pytest.raises(ValueError, match="case .*: got bytes of another hash"):
        registry.verify(copy)
    with pytest.raises(ValueError, match="got bytes of another SHA-256"):
        simulator.simulate_registry(copy, copy / "out")


def without_solvers():
    """Frozen cases whose mechanisms are made in no time."""
    cases = registry.load().reset_index().to_dict("records")
    closed = ("nsr", "bisr", "momentum_bisr", "lr_aware_toeplitz", "toeplitz_mean")
    return [case for case in cases if case["first"] in closed and case["second"] in closed]


def test_freezing_again_gives_the_same_bytes(tmp_path):
    digests = [registry.freeze(without_solvers(), tmp_path / name) for name in "ab"]
    assert digests[0] == digests[1]
    for name in ("registry.json", "arrays.npz", "registry.sha256"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    registry.verify(tmp_path / "a")
    assert len(registry.load(tmp_path / "a")) >= 2


def test_the_command_goes_on_from_what_its_folder_holds(tmp_path, capsys):
    """A registry and a panel are there: it simulates, and says that these are not the book's cases."""
    registry.freeze(without_solvers(), tmp_path / "registry")
    shutil.copy(validation.RESULTS / "panel.csv", tmp_path)
    assert cli.main(["study", "crossovers", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "the cases are NOT those of the committed registry" in printed
    assert "discovery" not in printed and "damages:" not in printed
    records = sorted(path.stem for path in (tmp_path / "cases").iterdir())
    assert records == sorted(case["id"] for case in without_solvers())
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert set(manifest["sha256"]) >= {"panel.csv", f"cases/{records[0]}.json"}


def test_all_cases_are_confirmed_at_both_ends_by_the_stored_simulation():
    validation.verify()
    table = validation.table()
    assert len(table) == 24
    assert table[["confirmed", "native confirmed"]].all(axis=None)
    assert (table[["share", "native share"]] <= 0.25).all(axis=None)
    # The standard errors are honest: 48 normal deviates.
    z = np.r_[table["z"], table["native z"]]
    assert np.abs(z).max() < 3.5
    assert 0.5 < np.mean(z**2) < 1.6


def test_one_case_simulated_live_by_the_file_alone(tmp_path):
    """Neither jax nor the package is there when it runs; the digits are those of the record."""
    out = tmp_path / "out"
    code = f"""
import runpy, sys
run = runpy.run_path({simulator.__file__!r})["simulate_registry"]
run({str(registry.FROZEN)!r}, {str(out)!r}, ["primary-12"])
print(*sorted({{name.split(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names)))
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "numpy" in loaded
    assert not loaded & {"jax", "jaxlib", "momentdp", "scipy", "xarray", "pandas", "jax_privacy"}
    live = json.loads((out / "primary-12.json").read_text())
    stored = json.loads((validation.RECORDS / "primary-12.json").read_text())
    for end in ("native", "tested"):
        assert live[end]["replicates"] == stored[end]["replicates"]
        np.testing.assert_allclose(live[end]["mean"], stored[end]["mean"], rtol=1e-9)
    assert [path.name for path in out.iterdir()] == ["primary-12.json"]


def test_an_interrupted_validation_goes_on_to_the_same_digits(tmp_path):
    """Killed in the middle of a case: what was drawn is kept, and the record is the same."""
    case, whole, broken = ["primary-12"], tmp_path / "whole", tmp_path / "broken"
    simulator.simulate_registry(registry.FROZEN, whole, case)

    class Killed(Exception):
        pass

    advance, calls = simulator._advance, []

    def killed_later(*arguments):
        calls.append(1)
        if len(calls) == 6:  # the second batch of the second end
            raise Killed
        advance(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "_advance", killed_later)
        with pytest.raises(Killed):
            simulator.simulate_registry(registry.FROZEN, broken, case)
    assert {path.name for path in broken.iterdir()} == {
        "primary-12-native.part",
        "primary-12-tested.part",
    }
    simulator.simulate_registry(registry.FROZEN, broken, case)
    assert (broken / "primary-12.json").read_text() == (whole / "primary-12.json").read_text()


def test_records_that_changed_are_refused(tmp_path):
    results = shutil.copytree(validation.RESULTS, tmp_path / "results")
    path = results / "cases" / "control-03.json"
    path.write_text(path.read_text().replace("1024", "1025"))
    with pytest.raises(ValueError, match="cases/control-03.json: got SHA-256"):
        validation.verify(results)
    path.write_text("{")
    with pytest.raises(ValueError, match="control-03.json: got no readable record"):
        validation.table(out=results / "cases")
    path.write_text(
        (results / "cases" / "control-04.json").read_text().replace("control-04", "control-03")
    )
    with pytest.raises(ValueError, match="case control-03: got a record of other bytes"):
        validation.table(out=results / "cases")


def test_a_simulation_that_does_not_confirm_is_not_hidden(tmp_path):
    results = shutil.copytree(validation.RESULTS, tmp_path / "results")
    path = results / "cases" / "primary-01.json"
    record = json.loads(path.read_text())
    record["tested"]["mean"][2] *= -1
    path.write_text(json.dumps(record))
    validation.write_manifest(results)
    assert not validation.table(out=results / "cases").loc["primary-01", "confirmed"]
    with pytest.raises(ValueError, match="case primary-01: got a simulation that does not confirm"):
        validation.verify(results)


def test_a_simulator_that_fails_says_why(tmp_path):
    with pytest.raises(RuntimeError, match="the simulator failed: FileNotFoundError"):
        validation.simulate(tmp_path / "nowhere", tmp_path / "out")
