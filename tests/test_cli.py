"""The command line, as a person calls it, and how it reads YAML."""

import subprocess
import sys
import types

import pandas as pd
import pytest
from test_chapters import notebooks, recorded  # noqa: F401  (a fixture)

from momentdp import _yaml, cli


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E+2", 100.0),
        ("-.5e-1", -0.05),
        ("1.0e-5", 1e-5),
        ("0.25", 0.25),
        ("12", 12),
        ("true", True),
        ("[1e-3, 2]", [1e-3, 2]),
        ("'1e-3'", "1e-3"),
        ("e3", "e3"),
        ("1e", "1e"),
        ("null", None),
    ],
)
def test_yaml_values(text, value):
    parsed = _yaml.parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "a: given twice"),
        ("b: 2\na: [1\nc: 3\n", "not readable as YAML: line 2: while parsing a flow sequence"),
        ("- 1\n", "got a list; write `name: value` lines"),
        ("a: {b: 1, b: 2}\n", "b: given twice"),
        ("a: !!python/object/apply:os.getcwd []\n", "not readable as YAML"),
    ],
)
def test_bad_yaml_is_refused(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        _yaml.read_mapping(path)


def test_missing_and_empty_files(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        _yaml.read_mapping(tmp_path / "none.yaml")
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert _yaml.read_mapping(tmp_path / "empty.yaml") == {}


def test_run_takes_file_and_command_line_and_the_latter_wins(notebooks, tmp_path, capsys):  # noqa: F811
    (tmp_path / "run.yaml").write_text("momentum: 1e-3\nsteps: 4\n")
    output = tmp_path / "out.ipynb"
    line = ["run", "tiny", "-p", "steps", "2", "-f", str(tmp_path / "run.yaml"), "-o", str(output)]
    assert cli.main(line) == 0
    assert recorded(output)["sum"] == "'2.001'"
    printed = capsys.readouterr()
    assert printed.out.strip() == str(output)
    assert printed.err == ""


@pytest.mark.parametrize(
    ("line", "code", "message"),
    [
        (["run", "tiny", "-p", "momentun", "1"], 2, "momentun: not a parameter"),
        (
            ["run", "tiny", "-p", "steps", "1e-3"],
            2,
            "steps: got 0.001 (float); give a value of type int",
        ),
        (["run", "tiny", "-p", "momentum", "x"], 2, "momentum: got 'x' (str)"),
        (["run", "nothing"], 2, "chapter: got 'nothing'; choose one of 01_tiny"),
        (["run", "tiny", "-f", "none.yaml"], 2, "does not exist"),
        (["run", "tiny", "-p", "label", "'a' b"], 2, "not readable as YAML"),
    ],
)
def test_refused_lines(notebooks, monkeypatch, tmp_path, capsys, line, code, message):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    assert cli.main(line) == code
    assert message in capsys.readouterr().err


def test_a_failing_cell_exits_with_one(notebooks, tmp_path, capsys):  # noqa: F811
    line = ["run", "tiny", "-p", "label", "x", "-p", "grid", "[]", "-o", str(tmp_path / "o.ipynb")]
    path = notebooks / "01_tiny.ipynb"
    path.write_text(path.read_text().replace("import pathlib", "import no_such_module"))
    assert cli.main(line) == 1
    assert "raised ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().err


def test_verify_names_each_record_and_fails_on_one_that_changed(tmp_path, monkeypatch, capsys):
    from momentdp.mechanisms import store

    record = tmp_path / "frozen.npz"
    record.write_bytes(b"abc")
    # SHA-256 of "abc": the first example of FIPS 180-2.
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    record.with_suffix(".sha256").write_text(f"{digest}  frozen.npz\n")
    monkeypatch.setattr(store, "FROZEN", record)
    monkeypatch.setattr(cli, "VERIFIED", {"strategies": "momentdp.mechanisms.store"})
    monkeypatch.setattr(cli, "RECORDS", ())
    assert cli.main(["verify"]) == 0
    assert capsys.readouterr().out == "strategies: as recorded\n"
    record.write_bytes(b"abd")
    assert cli.main(["verify"]) == 1
    assert "strategies: frozen.npz" in capsys.readouterr().err
    record.unlink()
    assert cli.main(["verify"]) == 1


def test_ledger_prints_rows_and_counts(monkeypatch, capsys):
    rows = {
        "id": ["a", "b"], "where": ["x", "y"], "kind": ["k", "k"], "reported": [1.0, 2.0],
        "ours": [1.0, None], "tolerance": [0.1, 0.1], "verdict": ["exact", "not yet"],
    }  # fmt: skip
    verdicts = ("exact", "not yet")
    ledger = types.SimpleNamespace(load=lambda: pd.DataFrame(rows), VERDICTS=verdicts)
    monkeypatch.setitem(sys.modules, "momentdp.ledger", ledger)
    monkeypatch.setattr("momentdp.ledger", ledger, raising=False)
    assert cli.main(["ledger", "--verdict", "not yet"]) == 0
    printed = capsys.readouterr().out
    assert "b" in printed
    assert "exact" not in printed
    assert printed.split()[-3:] == ["not", "yet", "1"]


def test_as_a_module():
    line = [sys.executable, "-m", "momentdp", "run", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "RUN.yaml" in done.stdout
    done = subprocess.run(line[:-2], capture_output=True, text=True, check=False)
    assert done.returncode == 2
