"""The frozen cases against their simulation, and `momentdp study crossovers`: all of it from nothing.

The simulator runs in a process of its own, from its file alone, on the frozen bytes alone.
"""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp._checks import refuse
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation import scores
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import (
    controlled_grid,
    crossovers,
    discovery,
    panel,
    records,
    registry,
    simulator,
)

RESULTS = discovery.GRID.parent
RECORDS = RESULTS / "cases"
BLIND = {
    "static": scores.mean_se,
    "LR-aware": scores.lr_aware,
    "momentum workload": scores.momentum_workload,
    "NoiseCurve": scores.noisecurve,
    "curvature, mu = 0": scores.curvature_schedule_mu0,
    "effective step": scores.curvature_effective_lr,
}


def simulate(folder: Path, out: Path, cases=()) -> None:
    """Run the simulator on a registry; what ``out`` holds already is kept.

    Raises:
        RuntimeError: it failed; its last words.
    """
    # -I: neither this folder nor the environment's variables may bring the package in.
    line = [sys.executable, "-I", simulator.__file__, str(folder), str(out), *cases]
    done = subprocess.run(line, stderr=subprocess.PIPE if not sys.stderr.isatty() else None)
    if done.returncode:
        words = (done.stderr or b"").decode().strip().splitlines()
        raise RuntimeError(f"the simulator failed: {words[-1] if words else done.returncode}")


def table(folder: Path = registry.FROZEN, out: Path = RECORDS) -> pd.DataFrame:
    """Each case: whether the simulation confirms it, with predicted and observed gaps.

    Columns ``gap`` and ``observed`` are what the mechanism that should lose costs over the other
    one, at the momentum, and ``native ...`` the same at mu = 0; ``z`` is (observed - predicted)
    difference over its standard error; ``share`` the 95% half-width over the observed difference.
    ``confirmed``: at the momentum ``second`` leads, resolved; ``both ends``: ``first`` leads at 0.

    Raises:
        ValueError: a record that is missing, damaged, or of other bytes than the registry's.
    """
    cases, predicted = registry.load(folder), registry.damages(folder)
    rows = {}
    for row in json.loads((folder / "registry.json").read_text()):
        record = _record(out / f"{row['id']}.json")
        if record["arrays"] != row["arrays"]:
            raise refuse(f"case {row['id']}", "a record of other bytes", "simulate it again")
        found = {}
        for end, sign in (("native", 1), ("tested", -1)):
            first, second, difference = record[end]["mean"]
            half_width = record[end]["half_width"][2]
            expected = predicted.loc[row["id"], end]
            error = difference - (expected["second"] - expected["first"])
            low, high = (first, second) if sign > 0 else (second, first)
            ratio = expected["second"] / expected["first"]
            found[end] = {
                "gap": ratio**sign - 1,
                "observed": high / low - 1,
                "z": error / (half_width / simulator.NORMAL_95),
                "share": half_width / abs(difference),
                "replicates": record[end]["replicates"],
                "confirmed": bool(record[end]["resolved"] and sign * difference > 0),
            }
        native = {f"native {name}": value for name, value in found["native"].items()}
        rows[row["id"]] = found["tested"] | native
    return cases.drop(columns=["native", "margin"]).join(pd.DataFrame.from_dict(rows, "index"))


def wrong_scores(folder: Path = registry.FROZEN) -> pd.DataFrame:
    """Whether a score (columns) prefers the mechanism that loses at the momentum: cases (rows)."""
    rows = {}
    for row in json.loads((folder / "registry.json").read_text()):
        with np.load(folder / "arrays.npz") as stored:
            numbers = {name: stored[digest] for name, digest in row["arrays"].items()}
        pair = [Mechanism.from_strategy_matrix(numbers[name]) for name in ("first", "second")]
        run = Momentum(row["momentum"]), numbers["eigenvalues"], numbers["rates"]
        values = {name: [score(m, *run) for m in pair] for name, score in BLIND.items()}
        rows[row["id"]] = {name: first < second for name, (first, second) in values.items()}
    return pd.DataFrame.from_dict(rows, "index")


def _record(path: Path) -> dict:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise refuse(path.name, "no readable record", "run `momentdp study crossovers`") from None


def write_manifest(out: Path = RESULTS) -> None:
    """The SHA-256 of everything that lies in ``out``, and what made it."""
    files = {path for path in out.rglob("*") if path.is_file() and path.suffix != ".part"}
    records.write_manifest(out, files - {out / records.MANIFEST}, numpy=np.__version__)


def verify(out: Path = RESULTS) -> None:
    """Compare the records with their manifest, and them with the registry; ValueError names a file
    that changed or a case that is not confirmed by its own record."""
    records.read_manifest(out)
    results = table(out=out / "cases")
    for name in results.index[~(results["confirmed"] & results["native confirmed"])]:
        raise refuse(f"case {name}", "a simulation that does not confirm it", "look at its record")


def study(out: Path) -> pd.DataFrame:
    """Everything from nothing, into a folder: mechanisms, grid, choice, frozen bytes, sensitivity
    panel, simulation. What the folder holds is kept: nothing is evaluated or simulated again."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "registry" / "registry.sha256").exists():
        start = time.perf_counter()
        noising = discovery.noising_matrices()
        built = time.perf_counter()
        grid = discovery.evaluate(noising)
        done = time.perf_counter()
        print(
            f"mechanisms: {built - start:.0f} s; {grid.damage.size} damages: {done - built:.0f} s"
        )
        grid.astype(np.float32).to_netcdf(out / "grid.nc", engine="scipy")
        found = discovery.reversals(grid.damage, registry.COMPETITORS)
        cases = registry.choose(registry.candidates(found))
        digest = registry.freeze(cases, out / "registry")
        print(f"{len(cases)} cases frozen, SHA-256 {digest}")
    if not (out / panel.PANEL.name).exists():
        panel.compute().round(6).to_csv(out / panel.PANEL.name)
    simulate(out / "registry", out / "cases")
    write_manifest(out)
    fields = list(registry.FIELDS)
    same = registry.load(out / "registry")[fields].equals(registry.load()[fields])
    print(f"the cases are {'those' if same else 'NOT those'} of the committed registry")
    return table(out / "registry", out / "cases")


def ledger_rows() -> dict[str, object]:
    """The blind protocol's rows, read off the committed records, and what LR-aware MF makes of a
    change of momentum: its order of the mechanisms in each slice of 3.1, which knows of none."""
    results = table()
    primary = results[results["register"] == "primary"]
    every = controlled_grid.grid_scores(
        momenta=crossovers.SLICE_MOMENTA, kappas=(10.0, 100.0, 1000.0)
    )
    orders = every["lr_aware"].rank(axis=1).groupby(["schedule", "kappa"]).nunique()
    return {
        "crossovers.confirmed": int(primary["confirmed"].sum()),
        "crossovers.primary_cases": len(primary),
        "crossovers.margin_primary": 100 * registry.REGISTERS["primary"][0],
        "crossovers.margin_control": 100 * registry.REGISTERS["control"][0],
        "crossovers.half_width": simulator.SHARE,
        "crossovers.lr_aware_changed": int((orders > 1).any(axis=1).sum()),
    }


def add_study_parser(commands) -> None:
    """Add the subcommand `crossovers` (of `momentdp study`) to an argparse subparsers object."""
    command = commands.add_parser(
        "crossovers",
        help="the blind protocol: discovery, registry and independent validation",
        description="Evaluate the discovery grid, choose and freeze the cases, simulate them in a "
        "process of its own. Interrupted, it resumes: call it again with the same folder.",
    )
    command.add_argument(
        "--out", type=Path, default=Path("runs/crossovers"), help="folder of the records"
    )
    command.set_defaults(call=_call)


def _call(arguments) -> int:
    results = study(arguments.out)
    columns = ["register", "first", "second", "gap", "observed", "z", "replicates", "confirmed"]
    print(results[[*columns, "native confirmed"]].round(3).to_string())
    confirmed = results["confirmed"].groupby(results["register"]).agg(["sum", "size"])
    print(confirmed.to_string(header=["confirmed", "of"]))
    return 0 if results["confirmed"].all() else 1
