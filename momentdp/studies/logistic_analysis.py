"""Reading a logistic study: tables with paired errors, predictions, and where the excess comes from."""

from collections.abc import Mapping, Sequence

import jax
import numpy as np
import pandas as pd
import scipy.stats
from jaxtyping import Float

from momentdp._checks import count, refuse
from momentdp.studies import logistic
from momentdp.studies.clipping_aware import clipped_jacobian, linearised_damage
from momentdp.studies.logistic import Condition, Task

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
    standard_errors: float | int = 2.0,
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


def noise_free_path(
    task: Task, condition: Condition, *, public: bool = False, clipped: bool = True
) -> Float[np.ndarray, "points dim"]:
    """theta_0 .. theta_T without privacy noise: on the shards, or, ``public``, on the calibration
    split as a whole, which costs no privacy."""
    steps = len(task.shards)
    if public:
        task = _calibration_task(task)
    still = {"none": np.eye(steps)}
    return logistic.train(task, still, condition, [0], privacy=False, clipped=clipped)[0, 0]


def _calibration_task(task: Task) -> Task:
    whole = np.arange(len(task.calibration_labels))
    return task._replace(
        features=task.calibration_features,
        labels=task.calibration_labels,
        shards=np.broadcast_to(whole, (len(task.shards), len(whole))),
    )


def effective_curvature(task: Task, theta=None) -> Float[np.ndarray, "dim dim"]:
    """H_eff: Jacobian of the clipped mean gradient on the calibration split at ``theta`` (default 0)."""
    point = np.zeros(task.features.shape[1]) if theta is None else theta
    batch = (task.calibration_features, task.calibration_labels)
    return clipped_jacobian(example_gradient, point, batch, task.clip_norm)


def path_jacobians(
    task: Task, path: Float[np.ndarray, "points dim"], *, public: bool = False
) -> Float[np.ndarray, "steps dim dim"]:
    """J_t at theta_t of ``path``, on the shard of step t or, ``public``, on the calibration split."""
    if public:
        task = _calibration_task(task)
    return np.stack(
        [
            clipped_jacobian(
                example_gradient, theta, (task.features[shard], task.labels[shard]), task.clip_norm
            )
            for theta, shard in zip(path[:-1], task.shards, strict=True)
        ]
    )


def predict(
    task: Task, mechanisms: Mapping[str, object], condition: Condition, **settings
) -> pd.DataFrame:
    """Predicted privacy part of the final excess (nats), a row a mechanism, a column a curvature.

    calibration, full: H_cal and H_full (Appendix F.4). clipped: H_eff drives, H_cal weighs.
    public_path: J_t along the noise-free path on the calibration split. path: J_t of the actual
    shards, exact for the linearised dynamics, a diagnostic that reads private data.
    ``settings`` go to `logistic.noise_stddev`.
    """
    stddev = logistic.noise_stddev(task, **settings)
    noising = logistic.stack_noising(mechanisms, len(task.shards))
    calibration, full = task.hessian(of="calibration"), task.hessian()
    public, private = (noise_free_path(task, condition, public=p) for p in (True, False))
    curvatures = {
        "calibration": (calibration, calibration),
        "full": (full, full),
        "clipped": (effective_curvature(task), calibration),
        "public_path": (
            path_jacobians(task, public, public=True),
            task.hessian(public[-1], of="calibration"),
        ),
        "path": (path_jacobians(task, private), task.hessian(private[-1])),
    }
    columns = {
        name: [
            linearised_damage(s, j, h, condition.learning_rates, condition.momentum, stddev)
            for s in noising
        ]
        for name, (j, h) in curvatures.items()
    }
    return pd.DataFrame(columns, index=pd.Index(mechanisms, name="mechanism"))


def kendall(predicted: pd.DataFrame, outcome: pd.Series) -> pd.Series:
    """Kendall's tau-b of each predicted column against ``outcome``, both indexed by mechanism."""
    aligned = outcome.loc[predicted.index]
    return predicted.apply(lambda column: scipy.stats.kendalltau(column, aligned).statistic)


def decompose(
    task: Task,
    mechanisms: Mapping[str, object],
    condition: Condition,
    noise_seeds: Sequence[int],
    **settings,
) -> pd.DataFrame:
    """Split the final excess over w* (H.2) by switching sources on one after another.

    path: whole training set, no clipping, no noise; + sampling: shards; + clipping; + privacy: the
    noise, mean and SE over the seeds. The four parts add up to the mean excess exactly; each is the
    effect of its source in this order.
    """
    count("number of noise_seeds", len(noise_seeds), 2)
    still = {"none": np.eye(len(task.shards))}

    def excess(pool, seeds, **switches):
        return task.excess(logistic.train(task, pool, condition, seeds, **switches)[:, :, -1])

    path = excess(still, [0], privacy=False, clipped=False, sampled=False).item()
    shards = excess(still, [0], privacy=False, clipped=False).item()
    clipped = excess(still, [0], privacy=False).item()
    noisy = excess(mechanisms, noise_seeds, **settings)
    parts = {
        "path": path,
        "sampling": shards - path,
        "clipping": clipped - shards,
        "privacy": noisy.mean(axis=1) - clipped,
        "privacy_se": noisy.std(axis=1, ddof=1) / np.sqrt(len(noise_seeds)),
        "total": noisy.mean(axis=1),
    }
    return pd.DataFrame(parts, index=pd.Index(mechanisms, name="mechanism"))
