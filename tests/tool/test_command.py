"""`momentdp rank` as a person calls it, and the page that it writes."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import momentdp as mdp
from momentdp import cli

RUN = """
steps: 16
epsilon: 2.0
delta: 1e-5
optimizer: {momentum: 0.5}
learning_rate: {schedule: cosine, peak_value: 0.3}
curvature: {spectrum: log_spaced, modes: 3, condition_number: 10.0}
mechanisms: [iid, bisr, noisecurve]
start: {loss: 1.0}
bands: 4
"""


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "RUN.yaml"
    path.write_text(RUN)
    return path


def direct():
    rates = mdp.schedules.cosine(16, 0.3)
    spectrum = mdp.spectra.log_spaced(3, 10.0)
    pool = mdp.catalogue(16, bands=4, learning_rates=rates, spectrum=spectrum, pool=["iid", "bisr"])
    return mdp.rank(pool, mdp.Momentum(0.5), spectrum, rates, epsilon=2.0, delta=1e-5)


def test_table_words_and_export(run_file, tmp_path, capsys):
    assert cli.main(["rank", str(run_file), "--export", str(tmp_path / "noise")]) == 0
    printed = capsys.readouterr()
    for name, value in direct()["damage"].items():
        assert re.search(rf"^{name} .* {value:.4g} ", printed.out, re.MULTILINE)
    assert "**Use `synthesised_" in printed.out
    assert (tmp_path / "noise" / "noise.json").is_file() and "exported to" in printed.err


def test_json_is_the_same_and_nothing_else(run_file, capsys):
    assert cli.main(["rank", str(run_file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {row["mechanism"]: row for row in told["ranking"]}
    for name, value in direct()["damage"].items():
        assert rows[name]["damage"] == pytest.approx(value, rel=1e-8)
    assert set(told) == {"ranking", "robustness", "trajectory", "expected", "warnings", "notes"}


def test_the_report_is_one_page_that_stands_alone(run_file, tmp_path, capsys):
    report = tmp_path / "out" / "report.html"
    assert cli.main(["rank", str(run_file), "--report", str(report)]) == 0
    page = report.read_text()
    assert "Use <code>synthesised_" in page and "momentum 0.5" in page
    assert f"{direct()['damage']['iid']:.3g}" in page
    assert "data:image/png;base64" in page
    assert not re.search(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    for left_out in ("{glue", "Three runs side by side", "admonition", "Traceback"):
        assert left_out not in page


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["rank", "RUN.yaml", "--report", "out.pdf"], "report: got out.pdf; give a path that ends"),
        (["rank", "none.yaml"], "none.yaml, which does not exist"),
        (["rank", "bad.yaml"], "bad.yaml: delta: got 'small'; pass a number in (0, 1)"),
        (["rank", "RUN.yaml", "--export", "x", "--mechanism", "no"], "mechanism: got 'no'; choose"),
        (["ledger", "--verdict", "bogus"], "verdict: got 'bogus'; choose one of exact"),
    ],
)
def test_refused(line, message, run_file, monkeypatch, capsys):
    monkeypatch.chdir(run_file.parent)
    (run_file.parent / "bad.yaml").write_text(RUN.replace("1e-5", "small"))
    assert cli.main(line) == 2
    printed = capsys.readouterr()
    assert message in printed.err and printed.out == ""


def test_help_imports_no_study():
    lines = "import sys; from momentdp import cli; cli._parser(['rank'])"
    watched = "momentdp.studies.cnn_command", "momentdp.tool", "papermill", "matplotlib"
    check = f"{lines}; sys.exit(any(name in sys.modules for name in {watched}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_reader_that_stops_early_is_no_error():
    line = f"{sys.executable} -m momentdp ledger | head -n 1"
    command = ["bash", "-c", f"set -o pipefail; {line}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "" and done.stdout.count("\n") == 1


def test_a_strategy_of_ones_own_from_a_file(run_file, capsys):
    C = np.eye(16) + 0.3 * np.eye(16, k=-1)
    np.save(run_file.parent / "mine.npy", C)
    run_file.write_text(RUN + "strategies: {mine: mine.npy}\n")
    assert cli.main(["rank", str(run_file), "--json"]) == 0
    rows = {row["mechanism"]: row for row in json.loads(capsys.readouterr().out)["ranking"]}
    m = mdp.Mechanism.from_strategy_matrix(C)
    case = mdp.Momentum(0.5), mdp.spectra.log_spaced(3, 10.0), mdp.schedules.cosine(16, 0.3)
    expected = mdp.damage(m, *case, noise_multiplier=mdp.noise_multiplier(2.0, 1e-5))
    assert rows["mine"]["damage"] == pytest.approx(expected, rel=1e-8)
