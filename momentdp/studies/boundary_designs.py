"""What the boundary study declares before any run: rates, spectra, designs and predictions.

One public set gives curvature, clip norm and scale, disjoint from every private split; the rate is
the one of RATES with the least validation loss under `dense`, mean over both momenta and seeds that
the study does not use, among those at which the frozen public curvature is stable; both momenta
share the effective rate eta / (1 - mu).
"""

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp._checks import refuse
from momentdp.damage import damage, trajectory_damage
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.dynamics.transfer import stability_limit
from momentdp.evaluation import scores
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.privacy import noise_multiplier
from momentdp.studies import boundary
from momentdp.studies.boundary import BATCH, DELTA, STEPS, Examples
from momentdp.studies.boundary_networks import NETWORKS, SmallNetwork
from momentdp.studies.images import ImageSet
from momentdp.synthesize import synthesize

EPSILONS, MOMENTA = (1.0, 4.0), (0.0, 0.9)
RATES = (0.02, 0.05, 0.1, 0.2)  # effective
WARM = 10  # noise-free public steps before the curvature that designs see
# Scores that differ in the curvature only: (clipped examples weighted, public steps before).
CURVATURES = {
    "MOMENT-DP at the start": (True, 0),
    "MOMENT-DP": (True, WARM),
    "MOMENT-DP after 50": (True, 50),
    "plain Hessian at the start": (False, 0),
    "plain Hessian": (False, WARM),
    "plain Hessian after 50": (False, 50),
}


@dataclass(frozen=True)
class Plan:
    """What a network is studied with: classics, designs for the final loss alone, public starts of
    the designs, seeds of the rule for the rate, and public examples behind a curvature."""

    network: SmallNetwork
    classics: tuple[str, ...]
    final: tuple[float, ...]
    starts: tuple[int, ...]
    rate_seeds: tuple[int, ...]
    curvature_examples: int


# A run of the CNN takes ten times as long: it goes without most classics, with fewer of the rest.
WHOLE_RUN = {"structure": "dense", "trajectory_weight": 1.0}  # D_dyn(T) + mean_t D_dyn(t)
PLANS = {
    "mlp": Plan(
        NETWORKS["mlp"],
        ("iid", "toeplitz_mean", "bisr", "dense"),
        MOMENTA,
        (800, 801, 802),
        (900, 901, 902),
        2_000,
    ),
    "cnn": Plan(NETWORKS["cnn"], ("dense",), (0.9,), (800,), (900,), 500),
}


def public_spectrum(
    plan: Plan, public: Examples, rate: float, start: int, steps: int, clipped: bool = True
) -> Spectrum:
    """The curvature after `steps` noise-free public steps from a public start."""
    network = plan.network
    parameters = network.init(start)
    clip = boundary.median_norm(network, parameters, public)
    if steps:
        batch = min(BATCH, len(public.labels))
        order = np.random.default_rng(start).permutation(
            np.resize(np.arange(len(public.labels)), steps * batch)
        )
        shards = order.reshape(steps, batch)
        given = public.inputs[shards], public.labels[shards]
        quiet = np.zeros((steps, 1, network.parameters), np.float32)
        rates = np.full(steps, rate, np.float32)
        parameters = boundary.train(network, parameters, given, quiet, rates, 0.0, clip)[0]
    count = plan.curvature_examples
    seen = Examples(public.inputs[:count], public.labels[:count])
    return boundary.curvature(network, parameters, seen, clip if clipped else np.inf, start)


def is_stable(spectrum: Spectrum, rate: float, momentum: float) -> bool:
    """Whether the frozen curvature is, at this effective rate."""
    return rate * (1 - momentum) * spectrum.largest < stability_limit(Momentum(momentum))


def choose_rate(plan: Plan, parts, epsilon: float, rates) -> float:
    """The effective rate among stable ones, by the rule of the module's first lines."""
    dense = np.asarray(catalogue(STEPS, pool=["dense"])["dense"].noising_matrix)
    network, valid, found = plan.network, parts["validation"], {}
    for rate in rates:
        found[rate] = np.mean(
            [
                boundary.outcomes(network, p, valid.inputs, valid.labels)[0]
                for mu in MOMENTA
                for seed in plan.rate_seeds
                for p in boundary.train_all(network, parts, dense[None], epsilon, mu, rate, seed)
            ]
        )
    return min(found, key=found.get)


def contestants(plan: Plan, spectra: list[Spectrum], rate: float) -> dict:
    """Classics, a control that knows neither curvature nor momentum, and the designs.

    `made_*` minimise D_dyn(T) + mean_t D_dyn(t), `final_*` D_dyn(T) alone, at momentum 0 and 0.9;
    `_b` and `_c` are the same from other public starts.
    """
    found = dict(catalogue(STEPS, pool=list(plan.classics)))
    found["control"] = made_flat(0.0)
    for suffix, spectrum in zip(("", "_b", "_c"), spectra, strict=False):
        for mu in MOMENTA:
            home = Momentum(mu), spectrum, schedules.constant(STEPS, rate * (1 - mu))
            at = f"{10 * mu:.0f}{suffix}"
            found[f"made_{at}"] = synthesize(*home, **WHOLE_RUN).mechanism
            if not suffix and mu in plan.final:
                found[f"final_{at}"] = synthesize(*home, structure="dense").mechanism
    return found


def made_flat(momentum: float) -> Mechanism:
    """Made for a momentum and the whole run, without curvature: rate and budget do not matter."""
    home = Momentum(momentum), Spectrum([1e-9]), schedules.constant(STEPS, 0.1)
    return synthesize(*home, **WHOLE_RUN).mechanism


def curvatures(plan: Plan, public: Examples, rate: float) -> dict[str, Spectrum]:
    """The spectrum behind each score of CURVATURES, from the first public start."""
    return {
        name: public_spectrum(plan, public, rate, plan.starts[0], steps, clipped)
        for name, (clipped, steps) in CURVATURES.items()
    }


def predictions(
    pool, spectra: dict[str, Spectrum], rate: float, momentum: float, scale: float
) -> pd.DataFrame:
    """Every score of every mechanism in one condition; those that are damages are in nats.

    A score whose frozen curvature is unstable says nothing: NaN.
    """
    rates, optimizer = schedules.constant(STEPS, rate * (1 - momentum)), Momentum(momentum)
    warm, rows = spectra["MOMENT-DP"], {}
    for name, m in pool.items():
        found = {
            score: damage(m, optimizer, spectrum, rates, noise_multiplier=scale)
            if is_stable(spectrum, rate, momentum)
            else np.nan
            for score, spectrum in spectra.items()
        }
        final = damage(m, optimizer, warm, rates, noise_multiplier=scale)
        mean = trajectory_damage(m, optimizer, warm, rates, noise_multiplier=scale)
        rows[name] = found | {
            "static": scores.mean_se(m, Momentum(0.0), [1.0], np.ones(STEPS)),
            "NoiseCurve": damage(m, Momentum(0.0), warm, rates, noise_multiplier=scale),
            "final + mean": final + mean,
            "root of final x mean": float(np.sqrt(final * mean)),
        }
    return pd.DataFrame(rows).T


def as_json(table: pd.DataFrame) -> dict:
    """Column -> row -> number; NaN, which JSON has not, becomes None."""
    return table.astype(object).where(table.notna(), None).to_dict()


def freeze(name: str, images: ImageSet, folder: Path) -> str:
    """Rates, spectra, designs and predictions, before any run of the study; their SHA-256."""
    plan, parts, matrices = PLANS[name], boundary.prepare(images), {}
    frozen = {"data": images.source, "data_sha256": images.sha256, "conditions": {}}
    frozen |= {"network": name, "parameters": plan.network.parameters}
    public, known = parts["calibration"], {}
    warm = {rate: public_spectrum(plan, public, rate, plan.starts[0], WARM) for rate in RATES}
    # Momentum 0 is the tighter case at an equal effective rate.
    stable = [rate for rate, spectrum in warm.items() if is_stable(spectrum, rate, 0.0)]
    clip = boundary.median_norm(plan.network, plan.network.init(plan.starts[0]), public)
    for epsilon in EPSILONS:
        rate = choose_rate(plan, parts, epsilon, stable)
        print(f"epsilon {epsilon:g}: effective rate {rate}", file=sys.stderr)
        if rate not in known:
            others = [public_spectrum(plan, public, rate, s, WARM) for s in plan.starts[1:]]
            pool = contestants(plan, [warm[rate], *others], rate)
            known[rate] = curvatures(plan, public, rate), pool
        spectra, pool = known[rate]
        scale = noise_multiplier(epsilon, DELTA) * clip / BATCH
        for momentum in MOMENTA:
            table = predictions(pool, spectra, rate, momentum, scale)
            frozen["conditions"][f"{epsilon:g} {momentum:g}"] = {
                "effective_rate": rate,
                "largest_curvature": {score: s.largest for score, s in spectra.items()},
                "predictions": as_json(table),
            }
        matrices |= {f"{epsilon:g} {key}": np.asarray(m.noising_matrix) for key, m in pool.items()}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "noising.npz", **matrices)
    text = json.dumps(frozen, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (folder / "frozen.json").write_text(text)
    (folder / "frozen.sha256").write_text(digest(folder) + "\n")
    return digest(folder)


def digest(folder: Path) -> str:
    """SHA-256 of the declaration and of the numbers of every matrix."""
    content = hashlib.sha256((folder / "frozen.json").read_bytes())
    with np.load(folder / "noising.npz") as matrices:
        for name in sorted(matrices):
            content.update(name.encode() + matrices[name].tobytes())
    return content.hexdigest()


def frozen_design(folder: Path) -> tuple[dict, dict[str, np.ndarray]]:
    """(declaration, noising matrices by "epsilon mechanism"), checked against their hash."""
    found, wanted = digest(folder), (folder / "frozen.sha256").read_text().strip()
    if found != wanted:
        raise refuse("frozen.sha256", found, f"restore the files of {wanted}")
    with np.load(folder / "noising.npz") as stored:
        return json.loads((folder / "frozen.json").read_text()), dict(stored)


def of_budget(matrices: dict[str, np.ndarray], epsilon: float) -> dict[str, np.ndarray]:
    """Those of one privacy budget, by mechanism."""
    prefix = f"{epsilon:g} "
    return {k.removeprefix(prefix): m for k, m in matrices.items() if k.startswith(prefix)}
