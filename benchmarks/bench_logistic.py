"""Private logistic regression: every run in one jax program against a plain loop over the runs.

30 noise seeds x the whole catalogue x L0 to L3. Both sides clip example by example (per-shard NumPy
in the loop) from the same noise; the loop is timed on a part of the runs and scaled.
"""

import time

import numpy as np
from scipy.special import expit

from momentdp.studies import logistic
from momentdp.studies.logistic_task import make_task

SEEDS, LOOPED, WANTED_SECONDS = range(30), 40, 20.0
# the catalogue, but for what is made for a momentum
CATALOGUE = (
    *("iid", "bisr", "sqrt", "nsr", "lr_aware_toeplitz", "lr_aware_opt", "dense_jax_privacy"),
    *logistic.RIVALS,
    *logistic.NOISECURVES,
)


def loop(task, condition, noise):
    """theta_T of one run, step by step."""
    theta, buffer = np.zeros(task.features.shape[1]), 0.0
    for rate, shard, z in zip(condition.learning_rates, task.shards, noise, strict=True):
        x = task.features[shard]
        each = (expit(x @ theta) - task.labels[shard])[:, None] * x
        norms = np.linalg.norm(each, axis=1)
        clipped = each * np.minimum(1.0, task.clip_norm / norms)[:, None]
        buffer = condition.optimizer.momentum * buffer + clipped.mean(axis=0) + z
        theta = theta - rate * buffer
    return theta


def main() -> None:
    """Print seconds, ratio and agreement; fail above the wanted seconds or where the two differ."""
    task = make_task()
    cases = {name: logistic.conditions(task)[name] for name in logistic.PAPER}
    pool = logistic.native_pool(task, pool=CATALOGUE)
    logistic.study(task, pool, {"L1": cases["L1"]}, SEEDS)  # compiles
    start = time.perf_counter()
    for condition in cases.values():
        last = logistic.train(task, pool, condition, SEEDS)[:, :, -1]
    fast, runs = time.perf_counter() - start, len(pool) * len(SEEDS) * len(cases)

    stddev, (steps, _) = logistic.noise_stddev(task), task.shards.shape
    noise = logistic.correlated_noise(pool, SEEDS, stddev, task.features.shape[1], steps)
    some = noise.reshape(-1, *noise.shape[2:])[:LOOPED]
    start = time.perf_counter()
    plain = np.stack([loop(task, cases["L3"], z) for z in some])
    slow = (time.perf_counter() - start) / LOOPED * runs
    difference = np.abs(plain - last.reshape(-1, last.shape[-1])[:LOOPED]).max()
    print(
        f"logistic regression, {len(pool)} mechanisms x {len(SEEDS)} seeds x {len(cases)} conditions"
    )
    print(f"  plain loop       {slow:8.2f} s (scaled from {LOOPED} runs)")
    print(f"  one jax program  {fast:8.2f} s (wanted: {WANTED_SECONDS:g})")
    print(f"  ratio {slow / fast:.1f}, largest difference of a parameter {difference:.1e}")
    if fast > WANTED_SECONDS or difference > 1e-9:
        raise SystemExit("logistic: the time or the agreement is not reached")


if __name__ == "__main__":
    main()
