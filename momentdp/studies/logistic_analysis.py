"""Reading a logistic study: tables with paired errors, predictions, and where the excess comes from."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Float

from momentdp._checks import count, refuse
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import logistic
from momentdp.studies.clipping_aware import clipped_jacobian, clipping_aware_damage
from momentdp.studies.logistic import Condition
from momentdp.studies.logistic_task import Task

example_gradient = jax.grad(logistic.example_loss)


def _wide(results: pd.DataFrame, condition: str, outcome: str) -> pd.DataFrame:
    chosen = results[results.condition == condition]
    if chosen.empty:
        raise refuse("condition", repr(condition), f"one of {sorted(set(results.condition))}")
    return chosen.pivot(index="noise_seed", columns="mechanism", values=outcome)


def table(results: pd.DataFrame, outcome: str = "excess") -> pd.DataFrame:
    """Table 2's layout for every mechanism: mean, SE, rank, and the paired gap to the best with its SE."""
    frames = []
    for condition in dict.fromkeys(results.condition):
        wide = _wide(results, condition, outcome)
        mean = wide.mean()
        gaps = wide.sub(wide[mean.idxmin()], axis=0)
        frame = pd.DataFrame(
            {
                "mean": mean,
                "se": wide.sem(),
                "rank": mean.rank(method="min").astype(int),
                "gap_to_best": gaps.mean(),
                "gap_se": gaps.sem(),
            }
        ).sort_values("mean")
        frames.append(pd.concat({condition: frame}, names=["condition"]))
    return pd.concat(frames)


def pairs(
    results: pd.DataFrame,
    condition: str,
    *,
    outcome: str = "excess",
    paired: bool = True,
    standard_errors=2.0,
) -> pd.DataFrame:
    """Every pair a, b: mean of a - b, its SE (of seed-wise differences if ``paired``), and whether
    it is resolved, that is, |difference| > ``standard_errors`` x SE."""
    wide = _wide(results, condition, outcome)
    rows = []
    for i, a in enumerate(wide):
        for b in wide.columns[i + 1 :]:
            unpaired = np.hypot(wide[a].sem(), wide[b].sem())
            se = (wide[a] - wide[b]).sem() if paired else unpaired
            difference = wide[a].mean() - wide[b].mean()
            rows.append((a, b, difference, se, abs(difference) > standard_errors * se))
    return pd.DataFrame(rows, columns=["a", "b", "difference", "se", "resolved"])


def _public(task: Task) -> Task:
    """The calibration split as the training set, whole at each step: costs no privacy."""
    whole = np.arange(len(task.calibration_labels))
    return task._replace(
        features=task.calibration_features,
        labels=task.calibration_labels,
        shards=np.broadcast_to(whole, (len(task.shards), len(whole))),
    )


def _quiet(task: Task) -> dict[str, Mechanism]:
    """What to pass where no noise is drawn."""
    return {"none": Mechanism.from_toeplitz(steps=len(task.shards), strategy_coef=[1.0])}


def effective_curvature(task: Task, theta=None) -> Float[np.ndarray, "dim dim"]:
    """H_eff: Jacobian of the clipped mean gradient on the calibration split at ``theta`` (or 0)."""
    point = np.zeros(task.features.shape[1]) if theta is None else theta
    batch = (task.calibration_features, task.calibration_labels)
    return clipped_jacobian(example_gradient, point, batch, task.clip_norm)


def path_curvature(
    task: Task, condition: Condition, *, public: bool = False
) -> tuple[Float[np.ndarray, "steps dim dim"], Float[np.ndarray, "dim dim"]]:
    """(J_t, H at theta_T) along the noise-free clipped path, shard by shard.

    ``public``: both the path and the curvatures come from the calibration split.
    """
    task = _public(task) if public else task
    path = logistic.train(task, _quiet(task), condition, [0], private=False)[0, 0]
    jacobians = [
        clipped_jacobian(
            example_gradient, theta, (task.features[s], task.labels[s]), task.clip_norm
        )
        for theta, s in zip(path[:-1], task.shards, strict=True)
    ]
    return np.stack(jacobians), task.hessian(path[-1])


def predict(
    task: Task, mechanisms: Mapping[str, Mechanism], condition: Condition, **accounting
) -> pd.DataFrame:
    """Predicted privacy part of the final excess (nats): a row a mechanism, a column a curvature.

    calibration, full: H_cal and H_full (Appendix F.4). clipped: H_eff drives, H_cal weighs.
    public_path: J_t along the noise-free path on the calibration split. path: J_t of the actual
    shards, exact for the linearised dynamics, a diagnostic that reads private data.
    ``accounting`` goes to `logistic.noise_stddev`.
    """
    stddev = logistic.noise_stddev(task, **accounting)
    calibration, full = task.calibration_hessian(), task.hessian()
    curvatures = {
        "calibration": (calibration, calibration),
        "full": (full, full),
        "clipped": (effective_curvature(task), calibration),
        "public_path": path_curvature(task, condition, public=True),
        "path": path_curvature(task, condition),
    }
    columns = {
        name: [
            clipping_aware_damage(m, *optimizer, loss_hessian=hessian, noise_multiplier=stddev)
            for m in mechanisms.values()
        ]
        for name, (jacobians, hessian) in curvatures.items()
        for optimizer in [(condition.optimizer, jacobians, condition.learning_rates)]
    }
    return pd.DataFrame(columns, index=pd.Index(mechanisms, name="mechanism"))


def kendall(predicted: pd.DataFrame, outcome: pd.Series) -> pd.Series:
    """Kendall's tau-b of each predicted column against ``outcome``, both indexed by mechanism."""
    aligned = outcome.loc[predicted.index]
    return predicted.apply(lambda column: scipy.stats.kendalltau(column, aligned).statistic)


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

    def excess(pool, seeds, **settings):
        return task.excess(logistic.train(task, pool, condition, seeds, **settings)[:, :, -1])

    def quiet(**switches):
        return excess(_quiet(task), [0], private=False, **switches).item()

    path, sampled = quiet(clipped=False, sampled=False), quiet(clipped=False)
    clipped, noisy = quiet(), excess(mechanisms, noise_seeds, **accounting)
    parts = {
        "path": path,
        "sampling": sampled - path,
        "clipping": clipped - sampled,
        "privacy": noisy.mean(axis=1) - clipped,
        "privacy_se": noisy.std(axis=1, ddof=1) / np.sqrt(len(noise_seeds)),
        "total": noisy.mean(axis=1),
    }
    return pd.DataFrame(parts, index=pd.Index(mechanisms, name="mechanism"))
