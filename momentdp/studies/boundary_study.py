"""The 2 x 2 beyond the neural boundary: designed at momentum 0 or 0.9, trained at 0 or 0.9.

Declared before any run, and frozen with a hash: one public set for curvature, clip norm and scale,
disjoint from every private split; the rate is the one of RATES with the least validation loss under
`dense`, mean over both momenta and three seeds that the study does not use, among those at which
the frozen public curvature is stable; both momenta share the effective rate eta / (1 - mu).
"""

import hashlib
import json
from pathlib import Path

import jax
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
from momentdp.privacy import noise_multiplier
from momentdp.studies import boundary, records
from momentdp.studies.boundary import PARAMETERS, Examples
from momentdp.studies.cnn import source_key
from momentdp.studies.cnn_tables import NO_NOISE
from momentdp.studies.images import ImageSet, load_cifar10, shard_examples
from momentdp.synthesize import synthesize

RESULTS = Path(__file__).resolve().parents[2] / "results" / "boundary"
STEPS, BATCH, DELTA = 100, 400, 1e-5
EPSILONS, MOMENTA, SEEDS = (1.0, 4.0), (0.0, 0.9), tuple(range(20))
RATES, RATE_SEEDS = (0.02, 0.05, 0.1, 0.2), (900, 901, 902)  # effective rates
SPECTRUM_SEEDS, WARM = (800, 801, 802), 10  # public starts of the designs, and their public steps
CLASSICAL = ("iid", "toeplitz_mean", "bisr", "dense")
OUTCOMES = ("validation_loss", "validation_accuracy", "test_loss", "test_accuracy")


def _noise(noising: np.ndarray, scale: float, seed: int) -> np.ndarray:
    """(steps, runs, parameters) from (runs, steps, steps): the same white noise for each run."""
    key = source_key("noise", seed)
    white = np.asarray(jax.random.normal(key, (len(noising[0]), PARAMETERS)))
    return np.stack([(scale * C).astype(np.float32) @ white for C in noising], axis=1)


def train_all(parts, noising, epsilon: float, momentum: float, rate: float, seed: int):
    """Final parameters (runs, parameters) of noising matrices (runs, steps, steps), which share one
    start, one order and one draw of white noise; ``rate`` is the effective one."""
    train, public = parts["train"], parts["calibration"]
    start = boundary.initial(seed)
    clip = boundary.median_norm(start, public)
    steps = len(noising[0])
    every = np.arange(len(train.labels))
    batch = min(BATCH, len(every) // steps)
    shards = shard_examples(every, steps=steps, batch_size=batch, order_seed=seed)
    noise = _noise(noising, noise_multiplier(epsilon, DELTA) * clip / batch, seed)
    rates = np.full(steps, rate * (1 - momentum), np.float32)
    given = train.inputs[shards], train.labels[shards]
    return boundary.train(start, given, noise, rates, momentum, clip)


def public_spectrum(public: Examples, rate: float, seed: int, steps: int) -> tuple[Spectrum, float]:
    """(curvature after `steps` noise-free public steps, clip norm)."""
    start = boundary.initial(seed)
    clip = boundary.median_norm(start, public)
    if steps:
        batch = min(BATCH, len(public.labels))
        order = np.random.default_rng(seed).permutation(
            np.resize(np.arange(len(public.labels)), steps * batch)
        )
        shards = order.reshape(steps, batch)
        given = public.inputs[shards], public.labels[shards]
        quiet = np.zeros((steps, 1, PARAMETERS), np.float32)
        start = boundary.train(start, given, quiet, np.full(steps, rate, np.float32), 0.0, clip)[0]
    return boundary.curvature(start, public, clip, seed), clip


def choose_rate(parts, epsilon: float) -> float:
    """The effective rate, by the rule of the module's first lines."""
    dense = np.asarray(catalogue(STEPS, pool=["dense"])["dense"].noising_matrix)
    valid, found = parts["validation"], {}
    for rate in RATES:
        spectrum, _ = public_spectrum(parts["calibration"], rate, SPECTRUM_SEEDS[0], WARM)
        # Momentum 0 is the tighter case at an equal effective rate.
        if rate * spectrum.largest < stability_limit(Momentum(0.0)):
            found[rate] = np.mean(
                [
                    boundary.outcomes(p, valid.inputs, valid.labels)[0]
                    for mu in MOMENTA
                    for seed in RATE_SEEDS
                    for p in train_all(parts, dense[None], epsilon, mu, rate, seed)
                ]
            )
    return min(found, key=found.get)


def contestants(spectra: list[Spectrum], rate: float) -> dict:
    """Four classics, a control that knows neither curvature nor momentum, and the designs.

    `made_*` minimise D_dyn(T) + mean_t D_dyn(t), `final_*` D_dyn(T) alone, at momentum 0 and 0.9;
    `_b` and `_c` are the same from other public starts.
    """
    found = dict(catalogue(STEPS, pool=list(CLASSICAL)))
    options = {"structure": "dense", "trajectory_weight": 1.0}
    flat = Momentum(0.0), Spectrum([1e-9]), schedules.constant(STEPS, rate)
    found["control"] = synthesize(*flat, **options).mechanism
    for suffix, spectrum in zip(("", "_b", "_c"), spectra, strict=True):
        for mu in MOMENTA:
            home = Momentum(mu), spectrum, schedules.constant(STEPS, rate * (1 - mu))
            at = f"{10 * mu:.0f}{suffix}"
            found[f"made_{at}"] = synthesize(*home, **options).mechanism
            if not suffix:
                found[f"final_{at}"] = synthesize(*home, structure="dense").mechanism
    return found


def predictions(pool, start: Spectrum, warm: Spectrum, rate: float, momentum: float, scale: float):
    """Every score of every mechanism in one condition; those that are damages are in nats."""
    rates = schedules.constant(STEPS, rate * (1 - momentum))
    optimizer, rows = Momentum(momentum), {}
    unstable = {"allow_unstable": True}
    for name, m in pool.items():
        home = m, optimizer, warm, rates
        final = damage(*home, noise_multiplier=scale)
        mean = trajectory_damage(*home, noise_multiplier=scale)
        before = damage(m, optimizer, start, rates, noise_multiplier=scale, **unstable)
        still = m, Momentum(0.0), warm, rates
        rows[name] = {
            "static": scores.mean_se(m, Momentum(0.0), [1.0], np.ones(STEPS)),
            "NoiseCurve": damage(*still, noise_multiplier=scale),
            "MOMENT-DP at the start": before,
            "MOMENT-DP": final,
            "final + mean": final + mean,
            "root of final x mean": float(np.sqrt(final * mean)),
        }
    return pd.DataFrame(rows).T


def freeze(images: ImageSet, folder: Path = RESULTS) -> str:
    """Rates, spectra, designs and predictions, before any run of the study; their SHA-256."""
    parts = boundary.prepare(images)
    frozen = {"data": images.source, "data_sha256": images.sha256, "conditions": {}}
    matrices = {}
    for epsilon in EPSILONS:
        rate = choose_rate(parts, epsilon)
        public = parts["calibration"]
        warm = [public_spectrum(public, rate, seed, WARM) for seed in SPECTRUM_SEEDS]
        start, _ = public_spectrum(public, rate, SPECTRUM_SEEDS[0], 0)
        pool = contestants([spectrum for spectrum, _ in warm], rate)
        scale = noise_multiplier(epsilon, DELTA) * warm[0][1] / BATCH
        for momentum in MOMENTA:
            table = predictions(pool, start, warm[0][0], rate, momentum, scale)
            frozen["conditions"][f"{epsilon:g} {momentum:g}"] = {
                "effective_rate": rate,
                "largest_curvature": [spectrum.largest for spectrum, _ in warm],
                "at_the_start": start.largest,
                "predictions": table.to_dict(),
            }
        for name, m in pool.items():
            matrices[f"{epsilon:g} {name}"] = np.asarray(m.noising_matrix)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "noising.npz", **matrices)
    text = json.dumps(frozen, indent=1, sort_keys=True, allow_nan=False) + "\n"
    (folder / "frozen.json").write_text(text)
    digest = _digest(folder)
    (folder / "frozen.sha256").write_text(digest + "\n")
    return digest


def _digest(folder: Path) -> str:
    """SHA-256 of the declaration and of the numbers of every matrix."""
    content = hashlib.sha256((folder / "frozen.json").read_bytes())
    with np.load(folder / "noising.npz") as matrices:
        for name in sorted(matrices):
            content.update(name.encode() + matrices[name].tobytes())
    return content.hexdigest()


def verify(folder: Path = RESULTS) -> str:
    """The digest, if declaration and matrices are those that were frozen."""
    found, wanted = _digest(folder), (folder / "frozen.sha256").read_text().strip()
    if found != wanted:
        raise refuse("frozen.sha256", found, f"restore the files of {wanted}")
    return found


def run_study(images: ImageSet, folder: Path = RESULTS) -> None:
    """Run what is missing: a record for each budget, momentum and seed, all mechanisms in each."""
    digest = verify(folder)
    parts = boundary.prepare(images)
    frozen = json.loads((folder / "frozen.json").read_text())
    if frozen["data_sha256"] != images.sha256:
        raise refuse("images", images.sha256, f"use the data of the designs: {frozen['data']}")
    jobs = {}
    for condition, declared in frozen["conditions"].items():
        epsilon, momentum = map(float, condition.split())
        for seed in SEEDS:
            identity = {"condition": condition, "seed": seed, "frozen": digest}
            arguments = (epsilon, momentum, declared["effective_rate"], seed)
            jobs[folder / f"run-{epsilon:g}-{momentum:g}-{seed}.json"] = identity, arguments
    with np.load(folder / "noising.npz") as stored:
        noising = dict(stored)
    records.complete(one_run, (parts, noising), jobs)


def one_run(shared, epsilon: float, momentum: float, rate: float, seed: int) -> dict:
    """Outcomes of every mechanism of this budget, and of training without noise."""
    parts, matrices = shared
    prefix = f"{epsilon:g} "
    noising = {k.removeprefix(prefix): m for k, m in matrices.items() if k.startswith(prefix)}
    steps = len(next(iter(noising.values())))
    noising[NO_NOISE] = np.zeros((steps, steps))
    ends = train_all(parts, np.stack(list(noising.values())), epsilon, momentum, rate, seed)
    found = {}
    for name, end in zip(noising, ends, strict=True):
        measured = [
            float(value)
            for part in ("validation", "test")
            for value in boundary.outcomes(end, parts[part].inputs, parts[part].labels)
        ]
        if not np.isfinite(measured).all():
            raise refuse("learning_rate", f"a loss that is not finite ({name})", "lower it")
        found[name] = dict(zip(OUTCOMES, measured, strict=True))
    return {"outcomes": found}


def add_study_parser(commands) -> None:
    """Add the subcommand `boundary` (of `momentdp study`) to an argparse subparsers object."""
    command = commands.add_parser(
        "boundary",
        help="networks that mechanisms made for two optimizers train",
        description="Freeze rates, designs and predictions, then run what is missing. Interrupted, "
        "it resumes: call it again with the same folder.",
    )
    command.add_argument("--data", required=True, help="copy of CIFAR-10")
    command.add_argument("--out", required=True, help="folder of the records")
    command.set_defaults(call=_call)


def _call(arguments) -> int:
    images, folder = load_cifar10(arguments.data), Path(arguments.out)
    if not (folder / "frozen.sha256").exists():
        print("frozen:", freeze(images, folder))
    run_study(images, folder)
    return 0
