"""What the explorer computes with, and the numbers of Figure 1, are those of the package today."""

import base64
import json

import numpy as np
import pytest

from momentdp import figures
from momentdp.mechanisms import store
from momentdp.mechanisms.catalogue import PAPER


@pytest.fixture(scope="module")
def tool(load_tool):
    return load_tool("explorer")


@pytest.fixture(scope="module")
def stored(tool):
    return tool.read()


def numbers(entry) -> np.ndarray:
    return np.frombuffer(base64.b64decode(entry["numbers"]), "<f4").astype(float)


def test_the_file_is_small_and_names_the_papers_pool_in_the_books_colours(tool, stored):
    assert tool.DATA.stat().st_size < 1.5e6
    assert list(stored["looks"]) == list(PAPER)
    for name, look in stored["looks"].items():
        assert (look["label"], look["colour"]) == figures.MECHANISMS[name][:2]
    assert set(stored["mechanisms"]) == set(PAPER) - {"noisecurve"}


def test_strategies_schedules_and_spectra_are_current(tool, stored):
    from momentdp.dynamics import schedules, spectra
    from momentdp.mechanisms.catalogue import catalogue

    pool = catalogue(tool.STEPS)
    entries = {name: (entry, pool[name]) for name, entry in stored["mechanisms"].items()}
    for el, kappa in ((0.4, 10.0), (0.2, 100.0)):  # those that the package has built already
        row = stored["noisecurve"][stored["conditions"].index(kappa)]
        entry = row[stored["step_sizes"].index(el)]
        entries[f"noisecurve {el} {kappa}"] = entry, tool.native(el, kappa)
    for name, (entry, m) in entries.items():
        kind, array = store.to_array(m)
        assert (entry["kind"], entry["bands"]) == (kind, len(array)), name
        np.testing.assert_allclose(numbers(entry), np.ravel(array), rtol=1e-6, atol=1e-7)
    for name, family in schedules.FAMILIES.items():
        np.testing.assert_allclose(stored["schedules"][name], family(tool.STEPS, 1.0))
    for kappa, eigenvalues in zip(stored["conditions"], stored["spectra"], strict=True):
        expected = spectra.log_spaced(tool.MODES, kappa).eigenvalues
        np.testing.assert_allclose(eigenvalues, expected)


def test_every_stop_of_the_sliders_has_a_strategy_of_unit_columns(tool, stored):
    assert len(stored["noisecurve"]) == len(tool.CONDITIONS)
    for row in stored["noisecurve"]:
        assert len(row) == len(tool.STEP_SIZES)
        for entry in row:
            diagonals = numbers(entry).reshape(entry["bands"], tool.STEPS)
            np.testing.assert_allclose((diagonals**2).sum(axis=0), 1.0, rtol=1e-5)


def test_figure_1_draws_what_the_runs_say(load_tool):
    tool = load_tool("figure1")
    found, kept = tool.numbers(tool.panels()), json.loads(tool.NUMBERS.read_text())
    assert {panel: list(lines) for panel, lines in found.items()} == {
        panel: list(lines) for panel, lines in kept.items()
    }
    for panel, lines in kept.items():
        for name, three in lines.items():
            assert found[panel][name] == pytest.approx(three, rel=2e-3), (panel, name)
