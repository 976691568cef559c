"""What a frozen curvature misses, computed after the runs of the boundary study.

At the smaller budget and for each momentum: the largest curvature along runs without noise; the
damage predicted along the run beside the observed one; and the final damage that each step's
curvature would predict, and how far its directions have turned. For all conditions: the scores of every curvature in `CURVATURES`.
"""

from pathlib import Path

import jax
import numpy as np

from momentdp.damage import damage, damage_curve
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.privacy import noise_multiplier
from momentdp.studies import boundary, records
from momentdp.studies.boundary import BATCH, DELTA, STEPS, Examples
from momentdp.studies.boundary_designs import (
    EPSILONS,
    MOMENTA,
    PLANS,
    WARM,
    as_json,
    curvatures,
    digest,
    frozen_design,
    is_stable,
    of_budget,
    predictions,
    public_spectrum,
)
from momentdp.studies.images import ImageSet

VISITED = (0, 2, 5, 10, 20, 50, 100)  # steps done
FRESH = (700, 701)  # seeds that neither the runs nor the rule nor the designs use
TOP = 5  # directions followed
LOOKED_AT = 500  # public examples behind a curvature along the run
SHOWN = ("made_9", "final_9", "dense")


def complete_paths(images: ImageSet, folder: Path) -> None:
    """Compute what is missing of after.json and a path-MOMENTUM.json for each momentum."""
    frozen, matrices = frozen_design(folder)
    plan = PLANS[frozen.get("network", "mlp")]
    shared = plan, boundary.prepare(images), matrices
    rates = {name: found["effective_rate"] for name, found in frozen["conditions"].items()}
    identity = {"frozen": digest(folder)}
    records.complete(afterwards, shared, {folder / "after.json": (identity, (rates,))})
    identity |= {"epsilon": EPSILONS[0], "seeds": list(FRESH), "steps": list(VISITED)}
    jobs = {}
    for momentum in MOMENTA:
        arguments = EPSILONS[0], momentum, rates[f"{EPSILONS[0]:g} {momentum:g}"]
        jobs[folder / f"path-{momentum:g}.json"] = identity | {"momentum": momentum}, arguments
    records.complete(along_the_run, shared, jobs)
    jobs = {path.with_name(path.name.replace("path", "turn")): job for path, job in jobs.items()}
    records.complete(turning, shared, jobs)


def _scale(plan, public: Examples, epsilon: float) -> float:
    start = plan.network.init(plan.starts[0])
    clip = boundary.median_norm(plan.network, start, public)
    return noise_multiplier(epsilon, DELTA) * clip / BATCH


def _pool(matrices, epsilon: float) -> dict[str, Mechanism]:
    chosen = of_budget(matrices, epsilon)
    return {name: Mechanism.from_noising_matrix(C, name) for name, C in chosen.items()}


def afterwards(shared, rates: dict[str, float]) -> dict:
    """Scores of every curvature, of which a declaration may have frozen a few only."""
    plan, parts, matrices = shared
    public, known, found = parts["calibration"], {}, {}
    for condition, rate in rates.items():
        epsilon, momentum = map(float, condition.split())
        if rate not in known:
            known[rate] = curvatures(plan, public, rate)
        scale = _scale(plan, public, epsilon)
        table = predictions(_pool(matrices, epsilon), known[rate], rate, momentum, scale)
        largest = {name: spectrum.largest for name, spectrum in known[rate].items()}
        found[condition] = {"predictions": as_json(table), "largest_curvature": largest}
    return {"conditions": found}


def along_the_run(shared, epsilon: float, momentum: float, rate: float) -> dict:
    """Curvature and damage at the steps VISITED, predicted and observed; a seed a row."""
    plan, parts, matrices = shared
    network, public = plan.network, parts["calibration"]
    seen = Examples(public.inputs[:LOOKED_AT], public.labels[:LOOKED_AT])
    every, pool, optimizer = _places(), _pool(matrices, epsilon), Momentum(momentum)
    rates = schedules.constant(STEPS, rate * (1 - momentum))
    scale = {"noise_multiplier": _scale(plan, public, epsilon)}
    warm = public_spectrum(plan, public, rate, plan.starts[0], WARM)
    noising = np.stack([*(matrices[f"{epsilon:g} {name}"] for name in SHOWN), 0 * np.eye(STEPS)])
    found = {"plain": [], "clipped": [], "observed": {name: [] for name in SHOWN}}
    found["final_by_curvature"] = {name: [] for name in SHOWN}
    found["predicted"] = {
        name: damage_curve(pool[name], optimizer, warm, rates, **scale)[every].tolist()
        for name in SHOWN
    }
    for seed in FRESH:
        run = network, parts, noising, epsilon, momentum, rate, seed
        path = np.asarray(boundary.train_all(*run, path=True))[every]
        for name, excess in zip(SHOWN, _excess(network, path, parts["test"]), strict=True):
            found["observed"][name].append(excess.tolist())
        start = network.init(seed)
        quiet = [start, *path[:, -1]]
        clip = boundary.median_norm(network, start, public)
        spectra = {
            kind: [boundary.curvature(network, p, seen, norm, seed) for p in quiet]
            for kind, norm in (("plain", np.inf), ("clipped", clip))
        }
        for kind, along in spectra.items():
            found[kind].append([spectrum.largest for spectrum in along])
        for name in SHOWN:
            found["final_by_curvature"][name].append(
                [
                    damage(pool[name], optimizer, spectrum, rates, **scale)
                    if is_stable(spectrum, rate, momentum)
                    else None
                    for spectrum in spectra["clipped"]
                ]
            )
    return found


def turning(shared, epsilon: float, momentum: float, rate: float) -> dict:
    """How much of the TOP largest curvatures of each step lies in step WARM's directions.

    One if they hold still, about zero if they are others; a seed a row.
    """
    plan, parts, _ = shared
    network, public, shares = plan.network, parts["calibration"], []
    seen = Examples(public.inputs[:LOOKED_AT], public.labels[:LOOKED_AT])
    for seed in FRESH:
        run = network, parts, np.zeros((1, STEPS, STEPS)), epsilon, momentum, rate, seed
        start = network.init(seed)
        quiet = [start, *boundary.train_all(*run, path=True)[_places(), 0]]
        clip = boundary.median_norm(network, start, public)
        found = [boundary.top_directions(network, p, seen, clip, TOP, seed) for p in quiet]
        held, share = found[VISITED.index(WARM)][1], []
        for parameters, (values, _) in zip(quiet, found, strict=True):
            product = jax.jit(boundary.hessian_product(network, parameters, seen, clip))
            kept = sum(float(u @ np.asarray(product(u))) for u in held.T)
            share.append(float(kept / values.sum()))
        shares.append(share)
    return {"share": shares}


def _places() -> np.ndarray:
    """Places of VISITED, without the start, among the states after each step."""
    return np.array(VISITED[1:]) - 1


def _excess(network, path, test: Examples) -> np.ndarray:
    """Test loss (runs - 1, visited) above the last run's, which has no noise."""
    loss = [
        [boundary.outcomes(network, p, test.inputs, test.labels)[0] for p in runs] for runs in path
    ]
    loss = np.array(loss).T
    return loss[:-1] - loss[-1]
