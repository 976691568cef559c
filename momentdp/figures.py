"""How the book draws: one name, place, colour and marker a mechanism, and a few plain plots.

Each plot prints minimum, mean and maximum of what it shows, since stored pictures are not compared.
Matplotlib and IPython are imported when something is drawn; nothing global is changed.
"""

from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import NamedTuple

import numpy as np
import pandas as pd


class Style(NamedTuple):
    """How one mechanism looks in every chapter: a colour a family, a line and a marker a member."""

    label: str
    colour: str
    marker: str
    line: str


# Okabe and Ito's colours (safe for colour-blind readers) with black, grey, brown and wine beside.
_GREY, _BLACK, _BLUE, _ORANGE, _GREEN = "#7a7a7a", "#000000", "#0072b2", "#e69f00", "#009e73"
_SKY, _VERMILION, _PINK, _BROWN, _WINE = "#56b4e9", "#d55e00", "#cc79a7", "#7a5230", "#882255"
MECHANISMS = {
    "iid": Style("iid", _GREY, "o", ":"),
    "dense": Style("dense", _BLACK, "s", "-"),
    "dense_jax_privacy": Style("dense (jax-privacy)", _BLACK, "d", "--"),
    "bandmf_mean": Style("BandMF (mean)", _BLUE, "^", "-"),
    "bandmf_max": Style("BandMF (max)", _BLUE, "v", "--"),
    "toeplitz_mean": Style("Toeplitz (mean)", _ORANGE, "^", "-"),
    "toeplitz_max": Style("Toeplitz (max)", _ORANGE, "v", "--"),
    "bandinv_mean": Style("banded inverse (mean)", _GREEN, "^", "-"),
    "bandinv_max": Style("banded inverse (max)", _GREEN, "v", "--"),
    "bisr": Style("BISR", _GREEN, "P", ":"),
    "lr_aware_sqrt": Style("LR-aware (root)", _SKY, "^", "-"),
    "lr_aware_toeplitz": Style("LR-aware (Toeplitz)", _SKY, "v", "--"),
    "lr_aware_opt": Style("LR-aware (optimised)", _SKY, "P", ":"),
    "noisecurve": Style("NoiseCurve", _VERMILION, "*", "-"),
    "noisecurve_floor": Style("NoiseCurve (floor)", _VERMILION, "X", "--"),
    "noisecurve_adam": Style("NoiseCurve (Adam)", _VERMILION, "d", ":"),
    "sqrt": Style("square root", _PINK, "o", "--"),
    "nsr": Style("normalised square root", _PINK, "s", "-"),
    "momentum_bisr": Style("BISR (momentum)", _BROWN, "P", ":"),
    "momentum_dense": Style("dense (momentum)", _BROWN, "s", "-"),
    "synthesised": Style("synthesised", _WINE, "D", "-"),
}


def label(name) -> str:
    """The display name of a mechanism; anything else as it is."""
    return MECHANISMS[name].label if name in MECHANISMS else str(name)


def styled():
    """Context manager: the book's matplotlib style, and none of it afterwards."""
    import matplotlib.pyplot as plt

    with as_file(files("momentdp") / "data" / "book.mplstyle") as path:
        return plt.style.context(path)


def curves(tables, xlabel, ylabel, *, log="", crossings=None) -> None:
    """Lines over the index of a DataFrame, one a column; a dict of them makes stacked panels.

    Columns named after mechanisms get their look; others are values of a parameter in order.
    ``log``: "x", "y" or "xy". ``crossings``: panel -> mechanism -> places on the x axis where its
    line gets a ring at height one.
    """
    import matplotlib.pyplot as plt

    tables = tables if isinstance(tables, Mapping) else {"": tables}
    with styled():
        size = (5.4, 0.9 + 2.5 * len(tables))
        figure, panels = plt.subplots(len(tables), sharex=True, squeeze=False, figsize=size)
        for (title, table), axes in zip(tables.items(), panels[:, 0], strict=True):
            for place, column in enumerate(sorted(table.columns, key=_place)):
                look = _look(column, place / max(table.shape[1] - 1, 1))
                axes.plot(table.index, table[column], markevery=max(len(table) // 8, 1), **look)
            for name, places in (crossings or {}).get(title, {}).items():
                ring = {"marker": "o", "ms": 10, "mfc": "none", "mec": MECHANISMS[name].colour}
                axes.plot(places, np.ones(len(places)), ls="none", zorder=3, **ring)
            axes.set(title=title, ylabel=ylabel)
            axes.set(xscale=_scale("x" in log), yscale=_scale("y" in log))
        axes.set_xlabel(xlabel)
        lines, names = axes.get_legend_handles_labels()
        wide = 2 if max(map(len, names)) > 15 else 3
        figure.legend(lines, names, loc="outside lower center", ncols=wide)
        _show(tables)


def bars(table, xlabel, *, errors=None, log=False, reference=None) -> None:
    """A horizontal bar for each row, best (lowest) of the first column on top; a panel a column.

    ``errors``: standard errors of the same shape. ``reference``: dict text -> value, drawn across.
    """
    import matplotlib.pyplot as plt

    table = table.to_frame() if isinstance(table, pd.Series) else table
    table = table.sort_values(table.columns[0], ascending=False, kind="stable")
    errors = None if errors is None else pd.DataFrame(errors).loc[table.index]
    colours = [_look(name, 0.0)["color"] for name in table.index]
    names = [label(name) for name in table.index]
    with styled():
        size = (5.4, (0.9 + 0.26 * len(table)) * table.shape[1])
        figure, panels = plt.subplots(table.shape[1], sharex=True, squeeze=False, figsize=size)
        for place, axes in enumerate(panels[:, 0]):
            spread = None if errors is None else errors.iloc[:, place]
            axes.barh(names, table.iloc[:, place], xerr=spread, color=colours, height=0.7)
            for (text, value), dash in zip((reference or {}).items(), ("--", ":"), strict=False):
                axes.axvline(value, color="#202020", linestyle=dash, label=text)
            axes.set_title(str(table.columns[place]) if table.shape[1] > 1 else "")
            axes.set_xscale(_scale(log))
            axes.grid(axis="y", visible=False)
        axes.set_xlabel(xlabel)
        if reference:
            figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
        _show({axes.get_title(): table.iloc[:, i] for i, axes in enumerate(panels[:, 0])})


def heatmaps(matrices: Mapping, caption: str, *, threshold=1e-2) -> None:
    """Square matrices side by side, each on its own signed scale: colour is value / largest.

    Linear below ``threshold`` of the largest entry, logarithmic above, so that tails show.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import SymLogNorm

    with styled():
        columns = min(len(matrices), 3)
        rows = -(-len(matrices) // columns)
        size = (5.4, 0.9 + 5.2 / columns * rows)
        figure, panels = plt.subplots(rows, columns, squeeze=False, figsize=size)
        for axes in panels.flat:
            axes.set_axis_off()
        for (name, matrix), axes in zip(matrices.items(), panels.flat, strict=False):
            norm = SymLogNorm(threshold, vmin=-1.0, vmax=1.0)
            image = axes.imshow(matrix / np.abs(matrix).max(), cmap="PuOr_r", norm=norm)
            axes.set_title(label(name), fontsize=9)
        bar = figure.colorbar(image, ax=panels, location="bottom", shrink=0.7, aspect=30)
        bar.set_label(caption)
        bar.set_ticks([-1, -threshold, 0, threshold, 1])
        bar.minorticks_off()
        _show(matrices)


def autocorrelation(mechanisms: Mapping, lags: int = 32) -> None:
    """Correlation of the noise with itself ``lag`` steps later, averaged over the run."""
    table = {}
    for name, m in mechanisms.items():
        K = m.noising_matrix @ m.noising_matrix.T
        R = K / np.sqrt(np.outer(np.diag(K), np.diag(K)))
        table[name] = [R.diagonal(lag).mean() for lag in range(min(lags, m.steps))]
    curves(pd.DataFrame(table), "lag (steps)", "correlation of the noise")


def show_table(table: pd.DataFrame, digits: int = 3) -> None:
    """A table in the page: rounded, display names, scrolling by itself where it is too wide."""
    from IPython.display import HTML, display

    shown = table.rename(index=label, columns=label)
    if shown.index.nlevels == 1:
        shown = shown.rename_axis(index=None, columns=shown.index.name)
    look = {"border": 0, "classes": "table", "justify": "left", "na_rep": ""}
    html = shown.to_html(float_format=lambda value: readable(value, digits), **look)
    display(HTML(f'<div style="overflow-x: auto" tabindex="0">{html}</div>'))


def show_ledger(start: str) -> None:
    """The ledger's rows whose id begins with ``start``: reported against ours, with the verdict."""
    from momentdp import ledger

    rows = ledger.load().set_index("id")
    show_table(rows.loc[rows.index.str.startswith(start), ["where", "reported", "ours", "verdict"]])


def readable(value, digits: int = 3) -> str:
    """A number as a reader wants it: 0.0123, 12300, 4.2×10⁻¹⁵; text as it is."""
    if isinstance(value, (str, bool, np.bool_, int, np.integer)):
        return str(value)
    text = f"{value:#.{digits}g}".rstrip(".")
    if float(text) == value and "e" not in text:
        text = f"{value:g}"  # nothing was cut off: 0.5, not 0.500
    mantissa, e, exponent = text.partition("e")
    if not e:
        return text
    if 0 <= int(exponent) < 6:
        return f"{float(text):.0f}"
    power = str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{power}" if float(mantissa) == 1 else f"{mantissa.rstrip('.')}×10{power}"


def glue(name: str, value, digits: int = 3) -> None:
    """Record a value for the prose (``{glue:text}`name```), rounded, as a string."""
    from myst_nb import glue as record

    record(name, readable(value, digits), display=False)


def quote(*ids: str) -> None:
    """Record what the paper reports, under the ledger's ids, for the prose."""
    from momentdp import ledger

    rows = ledger.load().set_index("id")["reported"]
    for identity in ids:
        glue(identity, rows[identity])


def paper_table(start: str, rows, columns) -> pd.DataFrame:
    """What the paper reports under the ids start.row.column."""
    from momentdp import ledger

    values = ledger.load().set_index("id")["reported"]
    table = [[float(values[f"{start}.{row}.{column}"]) for column in columns] for row in rows]
    return pd.DataFrame(table, list(rows), list(columns))


def _place(name) -> int:
    """The book's order for mechanisms; anything else stays behind them, as it came."""
    return list(MECHANISMS).index(name) if name in MECHANISMS else len(MECHANISMS)


def _scale(logarithmic: bool) -> str:
    return "log" if logarithmic else "linear"


def _look(name, position: float) -> dict:
    """A mechanism's own look; else the ``position`` (0 to 1) of a value among its like."""
    import matplotlib as mpl

    if name in MECHANISMS:
        return dict(zip(("label", "color", "marker", "linestyle"), MECHANISMS[name], strict=True))
    dashes = ("-", "--", "-.", ":")[round(3 * position)]
    return {"label": str(name), "color": mpl.colormaps["viridis"](0.75 * position), "ls": dashes}


def _show(shown: Mapping) -> None:
    """Print what is drawn in three numbers a panel, then hand the picture to the notebook."""
    import matplotlib.pyplot as plt

    for title, part in shown.items():
        values = np.asarray(part, dtype=float)
        lead = f"{label(title)}: " if title else ""
        three = np.array([np.nanmin(values), np.nanmean(values), np.nanmax(values)])
        # What rounding leaves of a zero differs between processors.
        low, mean, high = np.where(abs(three) < 1e-9 * abs(three).max(), 0.0, three)
        print(f"{lead}min {low:.4g}  mean {mean:.4g}  max {high:.4g}")
    plt.show()
