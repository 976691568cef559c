"""Write what the explorer page computes with: `python book/tools/explorer.py`.

The page has to work from a file, without a server, so its data are a script. It holds mechanisms, not
results: the page sends the noise through the optimizer itself. NoiseCurve is made for a curvature and
a step, so it is stored for each stop of these two sliders; the other ten need neither.
`--check` writes nothing and says whether the stored strategies are still those of the package.
"""

import base64
import json
import sys
from pathlib import Path

import numpy as np

from momentdp import figures
from momentdp.dynamics import schedules, spectra
from momentdp.mechanisms import store
from momentdp.mechanisms.catalogue import PAPER, catalogue
from momentdp.studies import crossovers

STATIC = Path(__file__).resolve().parents[1] / "_static"
DATA, PICTURE = STATIC / "explorer-data.js", STATIC / "explorer.png"
STEPS, MODES = 128, 16
STEP_SIZES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6)  # eta lambda_max
CONDITIONS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
START = {"el": 0.4, "kappa": 10.0, "momentum": 0.9, "schedule": "constant", "arm": "a"}
DASHES = {"-": "", "--": "7 4", ":": "2 3", "-.": "7 3 2 3"}
LEAD = "// Written by book/tools/explorer.py; numbers are little-endian, base64.\n"


def encoded(m) -> dict[str, object]:
    """A strategy as the page reads it: kind, number of its coefficients or bands, and its numbers.

    Single precision moves a damage by less than 1e-6 of itself, and halves the file.
    """
    kind, array = store.to_array(m)
    numbers = base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode()
    return {"kind": kind, "bands": len(array), "numbers": numbers}


def native(el: float, kappa: float):
    """NoiseCurve where it is at home: no momentum, constant rate."""
    return crossovers.native_pool(el, kappa, STEPS, pool=["noisecurve"])["noisecurve"]


def contents() -> dict[str, object]:
    """All that the page needs, from the package."""
    looks = {
        name: {"label": look.label, "colour": look.colour, "dashes": DASHES[look.line]}
        for name, look in figures.MECHANISMS.items()
        if name in PAPER
    }
    return {
        "looks": looks,
        "start": START,
        "step_sizes": STEP_SIZES,
        "conditions": CONDITIONS,
        "spectra": [spectra.log_spaced(MODES, kappa).eigenvalues.tolist() for kappa in CONDITIONS],
        "schedules": {name: of(STEPS, 1.0).tolist() for name, of in schedules.FAMILIES.items()},
        "mechanisms": {name: encoded(m) for name, m in catalogue(STEPS).items()},
        "noisecurve": [[encoded(native(el, kappa)) for el in STEP_SIZES] for kappa in CONDITIONS],
    }


def read() -> dict[str, object]:
    """The stored script as the page sees it."""
    text = DATA.read_text(encoding="utf-8").removeprefix(LEAD)
    return json.loads(text.partition("=")[2].strip().removesuffix(";"))


def draw() -> None:
    """The picture that stands in for the page in print and without JavaScript."""
    import matplotlib.pyplot as plt

    plt.switch_backend("Agg")
    pool = crossovers.native_pool(START["el"], START["kappa"], STEPS, pool=PAPER)
    momenta = np.linspace(0.0, 0.98, 50)
    tables = {
        f"arm ({arm})": crossovers.damages(pool, arm, START["el"], START["kappa"], momenta)
        for arm in "ab"
    }
    ratios = {title: table.div(table["dense"], axis=0) for title, table in tables.items()}
    figures.curves(ratios, "momentum μ", "damage / dense", log="y")
    plt.gcf().savefig(PICTURE, dpi=110, metadata={"Software": None})
    plt.close("all")


def main(arguments: list[str]) -> int:
    found = json.loads(json.dumps(contents()))
    if "--check" in arguments:
        same = read() == found
        print(f"{DATA.name}: {'current' if same else 'not the strategies of the package'}")
        return 0 if same else 1
    STATIC.mkdir(exist_ok=True)
    text = json.dumps(found, separators=(",", ":"), ensure_ascii=False)
    DATA.write_text(f"{LEAD}window.MOMENTDP = {text};\n", encoding="utf-8")
    draw()
    print(f"{DATA.name}: {DATA.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
