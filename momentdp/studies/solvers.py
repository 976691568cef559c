"""Problem P1 under several solvers, and what they design: the records behind two chapters.

``python -m momentdp.studies.solvers`` runs what results/solvers/ lacks and writes its manifest.
"""

import itertools
import operator
from pathlib import Path

import jax
import numpy as np
import pandas as pd
from jax_privacy.matrix_factorization import toeplitz

from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation import ranking, scores
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies import records
from momentdp.studies import solver_runs as runs
from momentdp.studies.solver_runs import STEPS, WAYS
from momentdp.synthesize import solve_p1

RESULTS = records.COMMITTED / "solvers"
EPSILONS = tuple(float(f"{10**power:.3g}") for power in np.arange(-6, -0.9, 0.5))
FAMILIES, KAPPAS = ("constant", "cosine", "warmup_cosine"), (10.0, 100.0)
TABLE3 = itertools.product((0.0, 0.5, 0.8, 0.9, 0.95), FAMILIES, KAPPAS)
TRUTHS = ("home", "curvature / 2", "curvature x 2", "less momentum", "more momentum", "mean")
STEP_SIZES = ((0.0, 0.4), (0.5, 0.4), (0.9, 0.4), (0.9, 0.04))  # momentum, eta lambda_max
# study -> (function, its arguments, a record each)
STUDIES = {
    "crosscheck": (runs.crosscheck, list(itertools.product((8, 16, 32), (2, 4)))),
    "adam": (runs.adam_start, [*((seed,) for seed in range(24)), (0, 1e-14)]),
    "eps": (runs.regularised, [(eps,) for eps in EPSILONS]),
    "gradients": (runs.unregularised, [(25 * 2**k,) for k in range(7)]),
    "trajectory": (runs.trajectory, list(TABLE3)),
    "synthesis": (
        runs.synthesis,
        [(*step, s, k) for step, s, k in itertools.product(STEP_SIZES, FAMILIES, KAPPAS)],
    ),
}


def constant_limit() -> float:
    """Largest difference of LR-aware MF at a constant rate, in both readings that have a closed
    form, from jax-privacy's optimal Toeplitz strategy for the maximal error (B.1)."""
    with jax.enable_x64(True):
        library = np.asarray(toeplitz.optimal_max_error_strategy_coefs(STEPS))
    names, rates = ["lr_aware_sqrt", "lr_aware_toeplitz"], schedules.constant(STEPS, 0.1)
    pool = catalogue(STEPS, pool=names, learning_rates=rates)
    ours = [m.structure.strategy_coef / m.structure.strategy_coef[0] for m in pool.values()]
    return float(np.abs(np.array(ours) - library).max())


def _jobs(study: str, folder: Path) -> dict[Path, tuple]:
    """path -> (identity, arguments) of each record of a study."""
    return {
        folder / f"{study}-{'-'.join(map(str, case))}.json": ({"case": list(case)}, case)
        for case in STUDIES[study][1]
    }


def main(folder: Path = RESULTS) -> None:
    """Run what is missing, then write the manifest: the hash of each record."""
    folder.mkdir(parents=True, exist_ok=True)
    done = []
    for study, (function, _) in STUDIES.items():
        jobs = _jobs(study, folder)
        done += records.complete(operator.call, function, jobs)
    records.write_manifest(folder, done)


def load(study: str, folder: Path = RESULTS) -> pd.DataFrame:
    """The records of one study, a row each, indexed by their arguments."""
    jobs = _jobs(study, folder)
    found = [records.read_record(path, identity) for path, (identity, _) in jobs.items()]
    names = [case[0] if len(case) == 1 else case for _, case in jobs.values()]
    table = pd.DataFrame(found).drop(columns=["case", "seconds"])
    return table.set_axis(pd.Index(names, tupleize_cols=False))


def discrimination() -> pd.DataFrame:
    """Mean pairwise accuracy of each score (rows) for each true outcome (columns), Table 3's grid."""
    table = load("trajectory")

    def accuracy(score, outcome):
        pairs = zip(table[score], table[f"{outcome} x 1"], strict=True)
        return np.mean([ranking.pairwise_accuracy(*pair) for pair in pairs])

    return pd.DataFrame({o: {s: accuracy(s, o) for s in table} for o in ("final", "mean")})


def misjudged() -> tuple[pd.DataFrame, pd.DataFrame]:
    """(geometric mean, largest) over the settings of the damage of each design (rows) over that of
    the catalogue's best member at home, under each truth (columns) and on the mean of the run."""
    ratios = []
    for record in load("synthesis").to_dict("records"):
        members = {name: d for name, d in record["home"].items() if ":" not in name}
        members.pop("floor")
        best = min(members, key=members.get)
        found = pd.DataFrame({truth: record[truth] for truth in TRUTHS})
        ratios.append(found.filter(regex="^synthesised: ", axis=0) / found.loc[best])
    table = pd.concat(ratios)
    table.index = table.index.str.removeprefix("synthesised: ")
    groups = np.log(table).groupby(level=0)
    return np.exp(groups.mean()), np.exp(groups.max())


def ledger_rows() -> dict[str, object]:
    """What the records say, by the ledger's ids: the paper's seed, an L-BFGS-B that is feasible."""
    ends, accuracy = load("crosscheck"), discrimination()["final"]
    adam = np.array([end["Adam, best feasible"][0][0] for end in ends["ends"]])
    second = [[end[f"L-BFGS-B, {way}"][0] for way in WAYS[:2]] for end in ends["ends"]]
    lbfgs = np.array([min(value for value, low in found if low > 0) for found in second])
    apart = 100 * np.abs(adam / lbfgs - 1)
    positive = min(end["Adam, best feasible"][0][1] for end in ends["ends"][-2:]) > 0
    ones = np.ones((STEPS, 1))
    last_only = solve_p1(factor=ones, regularisation=1e-6).mechanism
    home = Momentum(0.0), np.zeros(1), np.ones(STEPS)
    dense = catalogue(STEPS, pool=["dense"])["dense"]
    extreme = scores.mean_se(last_only, *home) > 10 * scores.mean_se(dense, *home)
    exact = constant_limit() < 1e-14
    return {
        "solver.lbfgs_agreement": int((apart < 0.01).sum()),
        "solver.t32_gap.small": apart[-2:].min(),
        "solver.t32_gap.large": apart[-2:].max(),
        "solver.t32_positive_definite": "yes" if positive else "no",
        "solver.gram_residual": ends["gram_residual"].max(),
        "lr_aware.constant_limit": "machine precision" if exact else "not equal",
        "mechanisms.last_only_excluded": "excluded" if extreme else "kept",
        "trajectory.less_discriminative": (
            "yes" if accuracy["final x 1"] > accuracy["mean x 1"] else "no"
        ),
    }


if __name__ == "__main__":
    main()
