"""`momentdp study logistic`: the study on ten data sets, one command, resumable.

Three records a data set: the runs of every condition and contestant, what predicts them, and where
their excess comes from. The chapter and the ledger read them from results/logistic.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp._checks import count
from momentdp.damage import damage
from momentdp.dynamics import spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic, records, registry
from momentdp.studies import logistic_analysis as analysis
from momentdp.studies.crossovers import NOISECURVES
from momentdp.studies.logistic_task import make_task
from momentdp.studies.moment_closure import closed_excess

RESULTS = records.COMMITTED / "logistic"
SETTINGS = {"epsilon": 4.0, "delta": 1e-5, "el": 0.1, "momentum": 0.9}
DATA_SEEDS, NOISE_SEEDS = range(10), range(30)
MORE_SEEDS = range(100, 200)  # fresh noise, each also mirrored: tells near ties that 30 cannot
NINES = (*logistic.RIVALS, *NOISECURVES)
CATALOGUE = ("iid", "bisr", "nsr", *NINES)
PREDICTED = (*logistic.NINE_CONDITIONS, *logistic.PRIMED)


def _setting(data_seed: int, epsilon, delta, el, momentum):
    task = make_task(data_seed)
    cases = logistic.conditions(task, el=el, momentum=momentum)
    pool = logistic.native_pool(task, el=el, pool=CATALOGUE)
    return task, cases, pool, {"epsilon": epsilon, "delta": delta}


def _text(values) -> str:
    """Numbers on one line, to six digits: the order of runs, not their last bits, is kept."""
    return " ".join(f"{value:.6g}" for value in np.ravel(values))


def runs(data_seed: int, **settings) -> dict:
    """Final excess over w* of each noise seed, by "condition / mechanism"; means without clipping,
    and over more, mirrored seeds; the excess without training and w*'s over the training optimum."""
    task, cases, pool, accounting = _setting(data_seed, **settings)
    nines, curve = {n: pool[n] for n in NINES}, logistic.regularised(task, el=settings["el"])
    found = {"runs": {}, "unclipped": {}, "mirrored": {}}
    for name, condition in cases.items():
        made = analysis.design(task, condition) if name in PREDICTED else {}

        def excess(pool, seeds, **switches):
            return logistic.study(task, pool, {name: condition}, seeds, **switches, **accounting)  # noqa: B023

        frames = {"runs": excess(pool | curve | made, NOISE_SEEDS)}
        frames["unclipped"] = excess(nines, NOISE_SEEDS, clipped=False).mean(axis=1).to_frame()
        if name in (*logistic.PAPER, *logistic.PRIMED):
            plain, mirror = (excess(nines | made, MORE_SEEDS, mirrored=m) for m in (False, True))
            half = (plain + mirror) / 2
            frames["mirrored"] = pd.DataFrame({"mean": half.mean(axis=1), "se": half.sem(axis=1)})
        for kind, frame in frames.items():
            rows = zip(frame.index, frame.to_numpy(), strict=True)
            found[kind] |= {" / ".join(key): _text(row) for key, row in rows}
    found["no_training"] = float(task.excess(np.zeros_like(task.teacher)))
    found["optimum"] = -float(task.excess(task.optimum))
    return found


def predictions(data_seed: int, **settings) -> dict:
    """Every predictor's value, by "condition / predictor": a number a mechanism, in order."""
    task, cases, pool, accounting = _setting(data_seed, **settings)
    values = [np.linalg.eigvalsh(h) for h in (task.calibration_hessian(), task.hessian())]
    effective = np.linalg.eigvalsh(analysis.effective_curvature(task))[-1]
    found = {"eigenvalue_discrepancy": float(np.abs(values[0] / values[1] - 1).max())}
    found |= {"effective_curvature": float(effective / values[0][-1]), "predicted": {}}
    for name in PREDICTED:
        everybody = pool | analysis.design(task, cases[name])
        table = analysis.predict(task, everybody, cases[name], **accounting)
        found["mechanisms"] = " ".join(everybody)
        found["predicted"] |= {f"{name} / {c}": _text(table[c]) for c in table}
    return found


def sources(data_seed: int, **settings) -> dict:
    """The parts of the excess without privacy noise, by condition: path, sampling, clipping."""
    task, cases, _, _ = _setting(data_seed, **settings)
    return {"quiet": {name: analysis.quiet_sources(task, case) for name, case in cases.items()}}


def frozen(data_seed: int, epsilon, delta, **_) -> dict:
    """The twelve pairs of the crossover registry, its bytes, at both ends, with H_cal for their
    spectrum: paired difference first - second, its SE, and what H_cal and the closure predict."""
    task, accounting, found = make_task(data_seed), {"epsilon": epsilon, "delta": delta}, {}
    spectrum = spectra.from_matrix(task.calibration_hessian())
    cases = json.loads((registry.FROZEN / "registry.json").read_text())[: registry.SIZE]
    with np.load(registry.FROZEN / "arrays.npz") as stored:
        for case in cases:
            arrays = {name: stored[digest] for name, digest in case["arrays"].items()}
            pair = {n: Mechanism.from_strategy_matrix(arrays[n]) for n in ("first", "second")}
            for end, momentum in (("native_rates", 0.0), ("rates", case["momentum"])):
                condition = logistic.Condition(Momentum(momentum), arrays[end] / spectrum.largest)
                excess = logistic.study(task, pair, {"": condition}, NOISE_SEEDS, **accounting)
                gap = excess.iloc[0] - excess.iloc[1]
                rows = [
                    (damage(m, condition.optimizer, spectrum, condition.learning_rates),
                     closed_excess(task, m, condition, **accounting))
                    for m in pair.values()
                ]  # fmt: skip
                predicted = np.subtract(*rows) * [logistic.noise_stddev(task, **accounting) ** 2, 1]
                found[f"{case['id']} / {end}"] = _text([gap.mean(), gap.sem(), *predicted])
    return {"frozen": found, "registry": registry.load().attrs["sha256"]["registry.json"]}


KINDS = {"runs": runs, "predictions": predictions, "sources": sources, "frozen": frozen}


def _run(settings: dict, kind: str, data_seed: int) -> dict:
    return KINDS[kind](data_seed, **settings)


def _jobs(folder: Path, data_seeds, settings) -> dict[Path, tuple]:
    """path -> (identity, arguments) of each record."""
    seeds = [f"{seeds.start}..{seeds.stop - 1}" for seeds in (NOISE_SEEDS, MORE_SEEDS)]
    identity = {"noise_seeds": ", ".join(seeds), **settings}
    return {
        folder / f"{kind}-{seed}.json": ({"data_seed": seed, **identity}, (kind, seed))
        for seed in data_seeds
        for kind in KINDS
    }


def complete(folder: Path, data_seeds=DATA_SEEDS, **changes) -> None:
    """Run what the folder lacks, then write its manifest: settings, seeds, versions, hashes."""
    settings = SETTINGS | changes
    folder.mkdir(parents=True, exist_ok=True)
    jobs = _jobs(folder, data_seeds, settings)
    records.complete(_run, settings, jobs)
    first = json.loads(next(iter(jobs)).read_text())
    about = {"settings": settings, "data_seeds": list(data_seeds)}
    about |= {"noise_seeds": first["identity"]["noise_seeds"], "versions": first["versions"]}
    records.write_manifest(folder, jobs, **about)


def load(kind: str, folder: Path = RESULTS) -> dict[int, dict]:
    """The records of one kind by data seed, each compared with the manifest's hash."""
    manifest = records.read_manifest(folder)
    jobs = _jobs(folder, manifest["data_seeds"], manifest["settings"])
    return {
        seed: records.read_record(path, identity)
        for path, (identity, (of_kind, seed)) in jobs.items()
        if of_kind == kind
    }


def outcomes(kind: str = "runs", folder: Path = RESULTS) -> pd.DataFrame:
    """Excess by (data_seed, condition, mechanism): a column a noise seed; for the kind "unclipped"
    one mean, for "mirrored" a mean and its SE."""
    rows = {
        (seed, *key.split(" / ")): np.array(text.split(), dtype=float)
        for seed, record in load("runs", folder).items()
        for key, text in record[kind].items()
    }
    names = ["data_seed", "condition", "mechanism"]
    index = pd.MultiIndex.from_tuples(rows, names=names)
    return pd.DataFrame(list(rows.values()), index=index).sort_index()


def predicted(folder: Path = RESULTS) -> pd.DataFrame:
    """Every predictor (columns) by (data_seed, condition, mechanism)."""
    frames = {}
    for seed, record in load("predictions", folder).items():
        for key, text in record["predicted"].items():
            condition, predictor = key.split(" / ")
            values = pd.Series(text.split(), index=record["mechanisms"].split(), dtype=float)
            frames.setdefault((seed, condition), {})[predictor] = values
    tables = {key: pd.DataFrame(columns) for key, columns in frames.items()}
    return pd.concat(tables, names=["data_seed", "condition", "mechanism"]).sort_index()


def of_data_sets(kind: str, field: str, folder: Path = RESULTS) -> pd.Series:
    """One number of every record of a kind, by data seed: "no_training" or "optimum" of the runs,
    "eigenvalue_discrepancy" or "effective_curvature" of the predictions."""
    return pd.Series({seed: record[field] for seed, record in load(kind, folder).items()})


def frozen_cases(folder: Path = RESULTS) -> pd.DataFrame:
    """`frozen` by (data_seed, case, end): columns difference, se, calibration, closure."""
    rows = {
        (seed, *key.split(" / ")): np.array(text.split(), dtype=float)
        for seed, record in load("frozen", folder).items()
        for key, text in record["frozen"].items()
    }
    index = pd.MultiIndex.from_tuples(rows, names=["data_seed", "case", "end"])
    columns = ["difference", "se", "calibration", "closure"]
    return pd.DataFrame(list(rows.values()), index=index, columns=columns).sort_index()


def quiet(folder: Path = RESULTS) -> pd.DataFrame:
    """The parts of the excess without privacy noise (columns) by (data_seed, condition)."""
    tables = {seed: pd.DataFrame(r["quiet"]).T for seed, r in load("sources", folder).items()}
    return pd.concat(tables, names=["data_seed", "condition"]).sort_index()


def add_study_parser(commands) -> None:
    """Add the subcommand `logistic` (of `momentdp study`) to an argparse subparsers object."""
    command = commands.add_parser(
        "logistic",
        help="Table 2 and Appendix F on ten data sets",
        description="Run every condition, contestant and prediction on each data set. Interrupted, "
        "it resumes: call it again with the same settings and folder.",
    )
    command.add_argument("--out", required=True, help="folder of the records")
    command.add_argument("--data-sets", type=int, default=len(DATA_SEEDS), help="0, 1, ... (10)")
    for name, default in SETTINGS.items():
        command.add_argument(f"--{name}", type=float, default=default, help=f"({default:g})")
    command.set_defaults(call=_call)


def _call(arguments) -> int:
    from momentdp.studies import logistic_tables
    from momentdp.studies.logistic_ranking import agreement

    folder = Path(arguments.out)
    changes = {name: getattr(arguments, name) for name in SETTINGS}
    complete(folder, range(count("data-sets", arguments.data_sets)), **changes)
    mean = outcomes(folder=folder).mean(axis=1)
    conditions = (*logistic.PAPER, *logistic.PRIMED)
    print("rank of each NoiseCurve among the nine, a number a data set")
    print(logistic_tables.rank_lists(mean, conditions).to_string())
    tau = agreement(mean, predicted(folder))
    print("\nKendall's tau of each prediction with the outcome, mean over the data sets")
    print(tau.groupby("condition", sort=False).mean().loc[list(conditions)].round(3).to_string())
    return 0
