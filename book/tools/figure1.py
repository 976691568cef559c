"""Figure 1 of the paper from our own runs: `python book/tools/figure1.py`.

Writes the pictures of the front page and, beside them, the numbers that they draw; a test computes
these again. (a) what the optimizer does to noise, (b) momentum with the rate held and with the effective
step held, (c) NoiseCurve's place in private logistic regression, by the way it was solved.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd

import momentdp as mdp
from momentdp import figures
from momentdp.studies import crossovers, logistic_study, logistic_tables

STATIC = Path(__file__).resolve().parents[1] / "_static"
NUMBERS = STATIC / "figure1.json"
EL, KAPPA, STEPS, LAST = 0.4, 10.0, 128, 40
SHOWN = ("noisecurve", "dense", "bandmf_mean", "toeplitz_mean")
CONDITIONS = ("L0", "L1", "L2", "L3")


def panels() -> dict[str, pd.DataFrame]:
    """What each panel draws, a column a line."""
    rates = mdp.schedules.constant(STEPS, EL)
    slowest = mdp.spectra.log_spaced(16, KAPPA).eigenvalues.min()
    reach = {
        f"μ = {mu:g}": np.abs(mdp.transfer(mdp.Momentum(mu), [slowest], rates)[0, -LAST:])
        for mu in (0.0, 0.9)
    }
    pool = crossovers.native_pool(EL, KAPPA, STEPS, pool=SHOWN)
    momenta = np.linspace(0.0, 0.95, 20)
    held = {arm: crossovers.damages(pool, arm, EL, KAPPA, momenta) for arm in "ab"}
    ratio = {arm: table.div(table["dense"], axis=0) for arm, table in held.items()}
    runs = logistic_study.outcomes().mean(axis=1)
    places = logistic_tables.ranks(runs, crossovers.NOISECURVES).groupby("condition").mean()
    return {
        "a": pd.DataFrame(reach, index=np.arange(-LAST, 0)),
        "b": ratio["a"].assign(**{"effective step held": ratio["b"]["noisecurve"]}),
        "c": places.loc[list(CONDITIONS)],
    }


def numbers(tables: dict[str, pd.DataFrame]) -> dict[str, dict[str, list[float]]]:
    """Least, mean and largest value of each line, to four digits."""
    return {
        panel: {
            str(name): [float(f"{value:.4g}") for value in (line.min(), line.mean(), line.max())]
            for name, line in table.items()
        }
        for panel, table in tables.items()
    }


def draw_reach(axes, table) -> None:
    for (name, line), look in zip(table.items(), ("-", "--"), strict=True):
        axes.plot(line.index, line, color="#202020", linestyle=look, label=name)
    axes.set(title="(a) reach of noise", xlabel="step, counted from the end")
    axes.set(ylabel="reach of a unit of noise")
    axes.legend(loc="upper left")


def draw_momentum(axes, table) -> None:
    for name in SHOWN:
        look = figures.MECHANISMS[name]
        drawn = {"color": look.colour, "marker": look.marker, "markevery": 4}
        axes.plot(table[name], linestyle=look.line, label=look.label, **drawn)
    held = table["effective step held"]
    axes.plot(held, color=figures.MECHANISMS["noisecurve"].colour, linestyle="--")
    axes.annotate("rate held", (0.67, table["noisecurve"].iloc[14] * 1.05), ha="right")
    axes.annotate("effective step held", (0.93, held.min() * 0.97), ha="right", va="top")
    axes.set(title="(b) momentum", xlabel="momentum μ", ylabel="damage / dense")
    axes.set(yscale="log", ylim=(0.45, 11))
    axes.set_yticks([0.5, 1, 2, 3], ["0.5", "1", "2", "3"])
    axes.minorticks_off()
    axes.legend(loc="upper left", fontsize=9)


def draw_places(axes, table) -> None:
    for name in crossovers.NOISECURVES:
        look = figures.MECHANISMS[name]
        drawn = {"color": look.colour, "marker": look.marker, "linestyle": look.line}
        axes.plot(table.index, table[name], label=look.label, **drawn)
    axes.set(title="(c) logistic regression", ylabel="rank among nine", ylim=(9.4, -2.2))
    axes.set_yticks([1, 3, 5, 7, 9])
    axes.set_xticks(range(4), ["no μ", "μ = .9", "cosine", "warm-\nup"])
    axes.legend(loc="upper right", fontsize=9)


PANELS = {"a": draw_reach, "b": draw_momentum, "c": draw_places}


def draw(tables: dict[str, pd.DataFrame]) -> None:
    """One picture of all panels, and one of each, which a phone shows below one another."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    STATIC.mkdir(exist_ok=True)
    with figures.styled():
        for shown in ("abc", *PANELS):
            size = (3.3, 3.3) if len(shown) == 1 else (11.5, 3.7)
            figure, axes = plt.subplots(1, len(shown), figsize=size, squeeze=False)
            for panel, place in zip(shown, axes.flat, strict=True):
                PANELS[panel](place, tables[panel])
            stem = "figure1" if shown == "abc" else f"figure1-{shown}"
            figure.savefig(STATIC / f"{stem}.png", dpi=110, metadata={"Software": None})
            plt.close(figure)


def main() -> int:
    tables = panels()
    draw(tables)
    NUMBERS.write_text(json.dumps(numbers(tables), indent=1, ensure_ascii=False) + "\n")
    print("figure 1 and its numbers written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
