"""Figures: one look a mechanism, what is printed is what is drawn, and nothing global changes."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from momentdp import figures
from momentdp.mechanisms.mechanism import Mechanism


@pytest.fixture(autouse=True)
def drawing(monkeypatch):
    """Draw without a screen, keep the figure open for the test, close it afterwards."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    monkeypatch.setattr(plt, "show", lambda: None)
    yield plt
    plt.close("all")


@pytest.fixture
def table():
    return pd.DataFrame({"dense": [2.0, 4.0], "iid": [1.0, 3.0]}, index=[0.0, 0.5])


def test_every_member_of_the_catalogue_has_a_look_of_its_own():
    from momentdp.mechanisms.catalogue import MEMBERS

    assert set(MEMBERS) <= set(figures.MECHANISMS)
    looks = figures.MECHANISMS.values()
    assert len({look.label for look in looks}) == len(looks)
    assert len({look[1:] for look in looks}) == len(looks)


def relative_luminance(colour: str) -> float:
    """WCAG 2's formula."""
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_lines_stand_out_from_white():
    for name, look in figures.MECHANISMS.items():
        assert 1.05 / (relative_luminance(look.colour) + 0.05) > 2.2, name


def test_the_notation_page_lists_the_names(root):
    page = (root / "book" / "notation.md").read_text(encoding="utf-8")
    for name, look in figures.MECHANISMS.items():
        assert f"| `{name}` | {look.label} |" in page


def test_curves_draw_mechanisms_in_order_and_print_what_they_draw(table, drawing, capsys):
    assert figures.curves({"first": table, "second": 10 * table}, "x", "y", log="y") is None
    upper, lower = drawing.gcf().axes
    assert [line.get_label() for line in upper.lines] == ["iid", "dense"]
    assert [line.get_color() for line in upper.lines] == [
        figures.MECHANISMS[name].colour for name in ("iid", "dense")
    ]
    np.testing.assert_array_equal(lower.lines[0].get_ydata(), [10.0, 30.0])
    assert upper.get_yscale() == "log" and lower.get_xlabel() == "x"
    expected = "first: min 1  mean 2.5  max 4\nsecond: min 10  mean 25  max 40\n"
    assert capsys.readouterr().out == expected


def test_curves_of_a_parameter_differ_in_colour_and_dashes(drawing):
    figures.curves(pd.DataFrame(np.eye(3), columns=[0.0, 0.5, 0.9]), "x", "y")
    lines = drawing.gcf().axes[0].lines
    assert [line.get_label() for line in lines] == ["0.0", "0.5", "0.9"]
    assert len({line.get_color() for line in lines}) == 3
    assert len({line.get_linestyle() for line in lines}) == 3


def test_bars_put_the_lowest_on_top(table, drawing, capsys):
    figures.bars(table.T, "loss", errors=0.1 * table.T, reference={"no training": 2.5})
    first = drawing.gcf().axes[0]
    assert [text.get_text() for text in first.get_yticklabels()] == ["dense", "iid"]
    assert [bar.get_width() for bar in first.patches] == [2.0, 1.0]
    assert "0.5: min 3  mean 3.5  max 4" in capsys.readouterr().out


def test_heatmaps_scale_each_matrix_by_its_largest_entry(drawing, capsys):
    figures.heatmaps({"iid": np.eye(3), "Q": -4.0 * np.eye(3), "b": np.eye(2), "c": np.eye(2)}, "c")
    images = [axes.images[0] for axes in drawing.gcf().axes[:4]]
    assert images[1].get_array().min() == -1.0
    assert "Q: min -4  mean -1.333  max 0" in capsys.readouterr().out


def test_autocorrelation_of_a_moving_average(drawing):
    """z_t = w_t + w_{t-1} / 2: correlation 1, 0.4, 0 away from the start."""
    m = Mechanism.from_toeplitz(steps=200, noising_coef=[1.0, 0.5])
    figures.autocorrelation({"bisr": m}, lags=3)
    values = drawing.gcf().axes[0].lines[0].get_ydata()
    np.testing.assert_allclose(values, [1.0, 0.4, 0.0], atol=1e-3)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.123456, "0.123"),
        (1.99999, "2.00"),
        (12345.6, "12300"),
        (199.9, "200"),
        (1e-12, "10⁻¹²"),
        (-4.23e-15, "-4.23×10⁻¹⁵"),
        (3, "3"),
        (True, "True"),
        (np.float64(0.5), "0.5"),
        ("dense", "dense"),
    ],
)
def test_numbers_as_a_reader_wants_them(value, text):
    assert figures.readable(value) == text
    assert figures.readable(2.94e6, 1) == "3×10⁶"  # without a point that ends in nothing


def test_tables_are_rounded_named_and_scroll_by_themselves(table, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", shown.append)
    figures.show_table(table.T / 3, digits=2)
    html = shown[0].data
    assert html.startswith('<div style="overflow-x: auto"') and "<td>0.67</td>" in html
    assert "id=" not in html  # pandas' Styler would put a random one


def test_glue_records_a_rounded_string(monkeypatch):
    import myst_nb

    record = []
    monkeypatch.setattr(myst_nb, "glue", lambda *args, **options: record.append((args, options)))
    figures.glue("worst", 4.23456e-15, digits=2)
    assert record == [(("worst", "4.2×10⁻¹⁵"), {"display": False})]


def test_the_papers_tables():
    """Two numbers of Table 3, typed."""
    found = figures.paper_table("grid", ["pairwise", "kendall"], ["static"])
    assert found["static"].to_dict() == {"pairwise": 58.0, "kendall": 0.143}


def test_importing_and_drawing_change_nothing_global(table):
    code = (
        "import matplotlib; before = dict(matplotlib.rcParams); import sys\n"
        "from momentdp import figures\n"
        "assert 'matplotlib.pyplot' not in sys.modules and before == dict(matplotlib.rcParams)\n"
        "with figures.styled(): assert matplotlib.rcParams['axes.spines.top'] is False\n"
        "import matplotlib.pyplot as plt; plt.switch_backend(before['backend'])\n"
        "assert {k for k in before if before[k] != matplotlib.rcParams[k]} <= {'backend'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"MPLBACKEND": "Agg", "HOME": "/"})
