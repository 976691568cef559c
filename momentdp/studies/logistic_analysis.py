"""Reading a logistic study: tables with paired errors, predictions, and where the excess comes from."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp._checks import count
from momentdp.clipping_aware import (
    clipped_jacobian,
    clipped_path,
    clipping_aware_damage,
    clipping_aware_factor,
)
from momentdp.dynamics import spectra
from momentdp.evaluation import ranking, scores
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic
from momentdp.studies.logistic import Condition
from momentdp.studies.logistic_task import Task
from momentdp.studies.moment_closure import closed_excess
from momentdp.synthesize import solve_p1, synthesize

example_gradient = jax.grad(logistic.example_loss)
# F.6's scores and those between: column of `predict` -> score with H_cal
SCORES = {
    "static": scores.mean_se,
    "lr_aware": scores.lr_aware,
    "momentum_workload": scores.momentum_workload,
    "curvature_mu0": scores.curvature_schedule_mu0,
}
DESIGNS = ("synthesised", "synthesised_banded", "synthesised_robust", "synthesised_path")


def table(results: pd.DataFrame) -> pd.DataFrame:
    """Table 2's layout of `logistic.study`, every mechanism, best first: mean, SE, rank, and the
    paired gap to the best with its SE."""
    frames = {}
    for condition, runs in results.groupby("condition", sort=False):
        mean = runs.mean(axis=1)
        gaps = runs - runs.loc[mean.idxmin()]
        columns = {"mean": mean, "se": runs.sem(axis=1), "rank": ranking.ranks(mean)}
        columns |= {"gap_to_best": gaps.mean(axis=1), "gap_se": gaps.sem(axis=1)}
        frames[condition] = pd.DataFrame(columns).sort_values("mean").droplevel("condition")
    return pd.concat(frames, names=["condition"])


def effective_curvature(task: Task) -> Float[np.ndarray, "dim dim"]:
    """H_eff: Jacobian of the clipped mean gradient on the calibration split at theta = 0."""
    batch = (task.calibration_features, task.calibration_labels)
    start = np.zeros(task.features.shape[1])
    return clipped_jacobian(example_gradient, start, batch, task.clip_norm)


def path_curvature(
    task: Task, condition: Condition, *, public: bool = False
) -> tuple[Float[np.ndarray, "steps dim dim"], Float[np.ndarray, "dim dim"]]:
    """(J_t, H at theta_T) along the noise-free clipped path, shard by shard.

    ``public``: both the path and the curvatures come from the calibration split, whole at each
    step, which costs no privacy.
    """
    if public:
        shards = np.broadcast_to(
            np.arange(len(task.calibration_labels)),
            (len(task.shards), len(task.calibration_labels)),
        )
        x, y = task.calibration_features, task.calibration_labels
    else:
        shards, x, y = task.shards, task.features, task.labels
    path, jacobians = clipped_path(
        example_gradient,
        condition.optimizer,
        condition.learning_rates,
        np.zeros(x.shape[1]),
        (x[shards], y[shards]),
        task.clip_norm,
    )
    last = path[-1]
    return jacobians, task.calibration_hessian(last) if public else task.hessian(last)


def curvatures(task: Task, condition: Condition) -> dict[str, tuple]:
    """What `predict` puts into the dynamics and what it weighs the loss with, by column."""
    calibration, full = task.calibration_hessian(), task.hessian()
    return {
        "calibration": (calibration, calibration),
        "full": (full, full),
        "clipped": (effective_curvature(task), calibration),
        "public_path": path_curvature(task, condition, public=True),
        "path": path_curvature(task, condition),
    }


def predict(
    task: Task, mechanisms: Mapping[str, Mechanism], condition: Condition, **accounting
) -> pd.DataFrame:
    """What each line of work predicts from: a row a mechanism, a column a predictor.

    Scores without a unit: `SCORES`. Privacy part of the final excess in nats: ``calibration`` and
    ``full``, MOMENT-DP with H_cal and H_full (F.4); ``clipped``: H_eff drives, H_cal weighs;
    ``public_path``: J_t along the noise-free path on the calibration split; ``path``: J_t of the
    actual shards, exact for the linearised dynamics; ``closure``: what noise does to the path too
    (`moment_closure`). The last two read private data: diagnostics.
    ``accounting`` goes to `logistic.noise_stddev`.
    """
    stddev = logistic.noise_stddev(task, **accounting)
    optimizer, rates = condition
    spectrum = spectra.from_matrix(task.calibration_hessian())
    pool = mechanisms.values()
    columns = {n: [s(m, optimizer, spectrum, rates) for m in pool] for n, s in SCORES.items()}
    for name, (jacobians, hessian) in curvatures(task, condition).items():
        weights = {"loss_hessian": hessian, "noise_multiplier": stddev}
        columns[name] = [
            clipping_aware_damage(m, optimizer, jacobians, rates, **weights) for m in pool
        ]
    quiet = noise_free(task, condition)
    columns["closure"] = [closed_excess(task, m, condition, **accounting) - quiet for m in pool]
    return pd.DataFrame(columns, index=pd.Index(mechanisms, name="mechanism"))


def design(
    task: Task, condition: Condition, *, bands: int = 16, regularisation: float = 1e-3
) -> dict[str, Mechanism]:
    """Mechanisms made for one condition from public data (`DESIGNS`).

    With H_cal in the class of least predicted damage; banded; banded and averaged over H_cal / 4,
    H_cal / 2 and H_cal, since clipping takes curvature away; banded for the Jacobians of the
    clipped gradient along the public path.
    """
    optimizer, rates = condition
    options = {"bands": bands, "regularisation": regularisation}
    made_for = (optimizer, spectra.from_matrix(task.calibration_hessian()), rates)
    jacobians, hessian = path_curvature(task, condition, public=True)
    factor = clipping_aware_factor(optimizer, jacobians, rates, loss_hessian=hessian)
    less = {"curvature": (0.25, 0.5, 1.0)}
    found = (
        synthesize(*made_for, **options),
        synthesize(*made_for, structure="banded", **options),
        synthesize(*made_for, structure="banded", robust_to=less, **options),
        solve_p1(factor @ factor.T, **options),
    )
    return {name: d.mechanism.renamed(name) for name, d in zip(DESIGNS, found, strict=True)}


def noise_free(task: Task, condition: Condition, **switches) -> float:
    """Final excess over w* without privacy noise; ``switches`` are those of `logistic.train`."""
    iid = {"none": Mechanism.from_toeplitz(steps=len(task.shards), strategy_coef=[1.0])}
    path = logistic.train(task, iid, condition, [0], private=False, **switches)
    return float(task.excess(path[0, 0, -1]))


def decompose(
    task: Task,
    mechanisms: Mapping[str, Mechanism],
    condition: Condition,
    noise_seeds: Sequence[int],
    **accounting,
) -> pd.DataFrame:
    """Split the final excess over w* (H.2) by switching the sources on one after another.

    path: whole training set, no clipping, no noise; then sampling (shards), clipping, privacy
    (mean and SE over the seeds). The parts add up to the mean excess ``total``; each is the effect
    of its source in this order.
    """
    count("number of noise_seeds", len(noise_seeds), 2)
    runs = logistic.study(task, mechanisms, {"": condition}, noise_seeds, **accounting).loc[""]
    quiet, total = quiet_sources(task, condition), runs.mean(axis=1)
    parts = {"privacy": total - sum(quiet.values()), "privacy_se": runs.sem(axis=1), "total": total}
    return pd.DataFrame(parts).assign(**quiet)[[*quiet, *parts]]


def quiet_sources(task: Task, condition: Condition) -> dict[str, float]:
    """The parts of the excess that are there without privacy noise."""
    path = noise_free(task, condition, clipped=False, sampled=False)
    sampled, clipped = noise_free(task, condition, clipped=False), noise_free(task, condition)
    return {"path": path, "sampling": sampled - path, "clipping": clipped - sampled}
