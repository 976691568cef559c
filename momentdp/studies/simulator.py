"""Monte Carlo of noisy heavy ball on a quadratic, independent of the rest of the package.

It imports NumPy and the standard library only, shares no formula with ``momentdp.damage`` and can
be loaded from its file alone, with neither jax nor momentdp: that is what makes it a witness.

    v <- lambda e + mu v + z_t,   e <- e - eta_t v,   loss = 1/2 sum lambda e_T^2,   e_0 = v_0 = 0

in each eigenmode of the Hessian, with z = C^-1 w drawn by solving C z = w. The white noise w has
standard deviation noise_multiplier times the largest column norm of C (the sensitivity under
single participation), so the mean loss estimates D_dyn. Batch k of a run is drawn from (seed, k),
so an interrupted run goes on to the same last bit.

``python -I simulator.py REGISTRY OUT`` simulates the frozen cases that OUT lacks, from their bytes.
"""

import hashlib
import json
import math
import os
import sys
from pathlib import Path

import numpy as np

NORMAL_95 = 1.959963984540054
SHARE = 0.25  # of the gap that its 95% half-width may be (paper, Appendix D)
FEWEST_REPLICATES = 1000  # before a run may stop: its own variance estimate must be worth something


def final_losses(strategy_matrix, eigenvalues, learning_rates, momentum, white_noise):
    """Loss after the last step of each replicate: (replicates,).

    Args:
        strategy_matrix: (T, T) lower triangular C.
        eigenvalues: (modes,) of the Hessian.
        learning_rates: (T,).
        momentum: mu.
        white_noise: (T, modes, replicates), unscaled.
    """
    steps, modes, replicates = white_noise.shape
    noise = np.linalg.solve(strategy_matrix, white_noise.reshape(steps, -1))
    noise *= np.linalg.norm(strategy_matrix, axis=0).max()
    curvature = eigenvalues[:, None]
    error = np.zeros((modes, replicates))
    buffer = np.zeros((modes, replicates))
    for eta, z in zip(learning_rates, noise.reshape(white_noise.shape), strict=True):
        buffer = curvature * error + momentum * buffer + z
        error = error - eta * buffer
    return 0.5 * np.sum(curvature * error**2, axis=0)


def simulate(
    strategy_matrix,
    eigenvalues,
    learning_rates,
    momentum,
    *,
    noise_multiplier=1.0,
    seed,
    replicates,
    batch=256,
):
    """Mean final loss of one mechanism: dict of replicates, mean, variance, half_width (95%).

    Arguments as in :func:`final_losses`; ``batch`` replicates are held in memory at a time.

    Raises:
        ValueError: shapes that do not match, entries that are not finite, C not lower triangular
            or singular, a negative eigenvalue or noise multiplier.
    """
    case = _case([strategy_matrix], eigenvalues, learning_rates, momentum, noise_multiplier)
    state = _start(case, seed, batch)
    while state["replicates"] < replicates:
        _advance(state, case, min(batch, replicates - state["replicates"]))
    result = _summary(state)
    count = result.pop("replicates")
    return {"replicates": count} | {key: values[0] for key, values in result.items()}


def simulate_pair(
    first_strategy,
    second_strategy,
    eigenvalues,
    learning_rates,
    momentum,
    *,
    noise_multiplier=1.0,
    seed,
    share=SHARE,
    max_replicates=1_000_000,
    batch=256,
    checkpoint=None,
):
    """Sample two mechanisms on the same white noise until their gap is resolved.

    Stops when the 95% half-width of the mean paired difference is at most ``share`` of its size
    (the paper's rule, Appendix D: one quarter), or at ``max_replicates``.

    Args:
        checkpoint: path of a JSON file, written after each batch and continued from if it exists.

    Returns:
        dict: replicates, mean and half_width of first, second and difference (second - first)
        as lists of three, resolved.

    Raises:
        ValueError: as :func:`simulate`, and a checkpoint of another case, seed or batch.
    """
    strategies = [first_strategy, second_strategy]
    case = _case(strategies, eigenvalues, learning_rates, momentum, noise_multiplier)
    state = _start(case, seed, batch)
    if checkpoint is not None and Path(checkpoint).exists():
        saved = json.loads(Path(checkpoint).read_text())
        if saved["fingerprint"] != state["fingerprint"]:
            raise ValueError(f"checkpoint: got {checkpoint} of another case; pass another path")
        state = saved
    while True:
        result = _summary(state)
        gap = abs(result["mean"][2])
        resolved = gap > 0 and result["half_width"][2] <= share * gap
        enough = state["replicates"] >= FEWEST_REPLICATES and resolved
        if enough or state["replicates"] >= max_replicates:
            return result | {"resolved": enough}
        _advance(state, case, batch)
        if checkpoint is not None:
            scratch = Path(f"{checkpoint}.part")
            scratch.write_text(json.dumps(state))
            os.replace(scratch, checkpoint)
        if sys.stderr.isatty():
            print(f"\r{state['replicates']} replicates", end="", file=sys.stderr)


def simulate_registry(folder, out, cases=None, **options):
    """Simulate the frozen cases of a registry at both ends, a JSON record each.

    ``first`` is said to lead at momentum 0 and ``second`` at the case's own. Nothing but the bytes
    of the arrays, the momentum and the seeds is read of a case. What ``out`` holds is not run again.

    Args:
        folder: of registry.json, arrays.npz and registry.sha256.
        out: folder of the records, made if need be; an interrupted case leaves its checkpoint.
        cases: ids; None for all.
        options: those of :func:`simulate_pair`.

    Raises:
        ValueError: a file or an array that is not the one of its SHA-256.
    """
    folder, out = Path(folder), Path(out)
    for line in (folder / "registry.sha256").read_text().splitlines():
        digest, name = line.split()
        _same(name, (folder / name).read_bytes(), digest)
    out.mkdir(parents=True, exist_ok=True)
    rows = json.loads((folder / "registry.json").read_text())
    with np.load(folder / "arrays.npz") as stored:
        for row in rows:
            path = out / f"{row['id']}.json"
            if path.exists() or (cases is not None and row["id"] not in cases):
                continue
            arrays = {name: stored[digest] for name, digest in row["arrays"].items()}
            for name, digest in row["arrays"].items():
                _same(f"{row['id']}, {name}", arrays[name].tobytes(), digest)
            record = {"case": row["id"], "arrays": row["arrays"], "numpy": np.__version__}
            ends = {"native": (0.0, "native_rates"), "tested": (row["momentum"], "rates")}
            for (end, (momentum, rates)), seed in zip(ends.items(), row["seeds"], strict=True):
                checkpoint = out / f"{row['id']}-{end}.part"
                strategies = arrays["first"], arrays["second"]
                condition = arrays["eigenvalues"], arrays[rates], momentum
                record[end] = {"seed": seed} | simulate_pair(
                    *strategies, *condition, seed=seed, checkpoint=checkpoint, **options
                )
            (out / "record.part").write_text(json.dumps(record, indent=1) + "\n")
            os.replace(out / "record.part", path)
            for end in ends:
                (out / f"{row['id']}-{end}.part").unlink(missing_ok=True)


def _same(name, content, digest):
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{name}: got bytes of another SHA-256; restore those of {digest[:12]}...")


def _case(strategies, eigenvalues, learning_rates, momentum, noise_multiplier):
    """The inputs as float64 arrays, checked."""
    strategies = [np.array(matrix, dtype=np.float64) for matrix in strategies]
    eigenvalues = np.array(eigenvalues, dtype=np.float64)
    learning_rates = np.array(learning_rates, dtype=np.float64)
    steps = len(learning_rates)
    for matrix in strategies:
        if matrix.shape != (steps, steps):
            raise ValueError(f"strategy: got shape {matrix.shape}; pass ({steps}, {steps})")
        if np.any(np.triu(matrix, 1)) or not np.all(np.diag(matrix)):
            raise ValueError(
                "strategy: got an upper entry or a zero diagonal; pass a lower triangle"
            )
    if eigenvalues.min() < 0 or noise_multiplier < 0:
        raise ValueError("eigenvalues, noise_multiplier: got a negative one; pass values >= 0")
    case = (*strategies, eigenvalues, learning_rates, np.array([momentum, noise_multiplier]))
    if not all(np.all(np.isfinite(array)) for array in case):
        raise ValueError("case: got NaN or infinity; pass finite numbers")
    return case


def _start(case, seed, batch):
    digest = hashlib.sha256(json.dumps([seed, batch, *(a.tolist() for a in case)]).encode())
    zeros = [0.0] if len(case) == 4 else [0.0, 0.0, 0.0]
    state = {"fingerprint": digest.hexdigest(), "seed": seed, "batches": 0, "replicates": 0}
    return state | {"mean": zeros, "squares": zeros}


def _advance(state, case, count):
    """Draw one batch and merge its mean and squared deviations (Chan et al. 1979)."""
    *strategies, eigenvalues, learning_rates, (momentum, noise_multiplier) = case
    rng = np.random.default_rng([state["seed"], state["batches"]])
    noise = noise_multiplier * rng.standard_normal((len(learning_rates), len(eigenvalues), count))
    losses = [final_losses(C, eigenvalues, learning_rates, momentum, noise) for C in strategies]
    if len(losses) == 2:
        losses.append(losses[1] - losses[0])
    total = state["replicates"] + count
    mean, squares = np.array(state["mean"]), np.array(state["squares"])
    shift = np.mean(losses, axis=1) - mean
    squares += count * np.var(losses, axis=1) + shift**2 * state["replicates"] * count / total
    mean += shift * count / total
    state.update(mean=mean.tolist(), squares=squares.tolist(), replicates=total)
    state["batches"] += 1


def _summary(state):
    count = state["replicates"]
    variance = [square / (count - 1) if count > 1 else math.inf for square in state["squares"]]
    half_width = [NORMAL_95 * math.sqrt(v / count) if count else math.inf for v in variance]
    return {
        "replicates": count,
        "mean": state["mean"],
        "variance": variance,
        "half_width": half_width,
    }


if __name__ == "__main__":
    simulate_registry(sys.argv[1], sys.argv[2], sys.argv[3:] or None)
