"""The CNN study of Appendix G: one record for each (condition, mechanism, seed)."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp._checks import finite_array, refuse
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.transfer import stability_limit
from momentdp.studies.cnn import calibrate, correlated_noise, evaluate, source_key, train
from momentdp.studies.cnn_tables import CONDITIONS, load_records
from momentdp.studies.images import ImageSet, shard_examples, split_examples
from momentdp.studies.network import CHANNELS, Network
from momentdp.studies.records import complete, write_manifest


@dataclass(frozen=True)
class StudySettings:
    """Everything that decides a run beside data, mechanism, condition and seed.

    `noise_multiplier` is at sensitivity 1; the default is (epsilon, delta) = (4, 1e-5). The peak
    rate is `learning_rate` in all runs (the paper reports one number), or, where `rate_scale` is
    given, `rate_scale` / lambda_max at each seed's initialisation. A run's seed decides
    initialisation, order and noise; `data_seed` the splits of all runs. The last checkpoint looks
    at every validation and test example, the earlier ones at the first `early_examples` of each.
    Clip norm and curvature come from the first so many of the `calibration` examples.
    """

    steps: int = 100
    batch_size: int = 400
    noise_multiplier: float = 1.08116184952
    learning_rate: float = 0.00229
    rate_scale: float | None = None
    checkpoints: tuple[int, ...] = (20, 40, 60, 80, 100)
    early_examples: int = 1_000
    calibration: int = 2_000
    validation: int = 3_000
    test: int = 5_000
    clip_examples: int = 200
    curvature_examples: int = 500
    num_eigenvalues: int = 30
    num_probes: int = 10
    channels: tuple[int, ...] = CHANNELS
    data_seed: int = 0

    def split(self, images: ImageSet) -> dict[str, np.ndarray]:
        """The four disjoint parts."""
        return split_examples(
            len(images.labels),
            data_seed=self.data_seed,
            train=self.steps * self.batch_size,
            calibration=self.calibration,
            validation=self.validation,
            test=self.test,
        )


def run_study(
    settings: StudySettings,
    images: ImageSet,
    mechanisms: Mapping[str, np.ndarray],
    out: str | Path,
    *,
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4),
    conditions: tuple[str, ...] = tuple(CONDITIONS),
    workers: int = 1,
    scheduler: str | None = None,
) -> pd.DataFrame:
    """Run what is missing in folder `out`, and return `load_records(out)`.

    Args:
        mechanisms: name -> (steps, steps) noising matrix C^-1 of sensitivity 1; the arm `no_noise`
            is a matrix of zeros.
        workers: local processes; 1 runs in this one. More need the extra `study`.
        scheduler: address of a running `dask.distributed` scheduler, used instead.
    Raises:
        ValueError: bad settings, an unstable rate, damaged records or those of other settings.
    """
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    settings.split(images)  # refuses too few examples before anything runs
    for condition in conditions:
        if condition not in CONDITIONS:
            raise refuse("conditions", condition, f"use some of {sorted(CONDITIONS)}")
    for name, matrix in mechanisms.items():
        shape = finite_array(f"mechanisms[{name!r}]", matrix, 2).shape
        if shape != (settings.steps, settings.steps) or not re.fullmatch(r"\w+", name):
            raise refuse("mechanisms", f"{name!r} of {shape}", f"pass names and {settings.steps}^2")

    how = {"workers": workers, "scheduler": scheduler}
    starts = {
        out / f"calibration.{seed}.json": (run_identity(settings, images, seed), (seed,))
        for seed in seeds
    }
    calibrated = complete(calibration_run, (settings, images), starts, **how)
    jobs = {}
    for path, start in calibrated.items():
        for condition in conditions:
            for name, matrix in mechanisms.items():
                rounded = np.round(matrix, 9) + 0.0  # the last digits differ between processors
                identity = {
                    **starts[path][0],
                    "condition": condition,
                    "mechanism": name,
                    "noising_matrix_sha256": hashlib.sha256(rounded.tobytes()).hexdigest(),
                }
                arguments = (start["seed"], condition, np.asarray(matrix), start)
                jobs[out / f"{condition}.{name}.{start['seed']}.json"] = (identity, arguments)
    complete(training_run, (settings, images), jobs, **how)
    write_manifest(out, out.rglob("*.*.json"))
    return load_records(out)


def run_identity(settings: StudySettings, images: ImageSet, seed: int) -> dict:
    """What decides a calibration, as its record will read it back."""
    common = json.loads(json.dumps(asdict(settings)))
    return common | {"data": images.source, "data_sha256": images.sha256, "seed": seed}


def calibration_run(shared: tuple[StudySettings, ImageSet], seed: int) -> dict:
    """Clip norm and curvature at the initialisation of `seed`, on the calibration part only."""
    settings, images = shared
    network = Network.for_device(settings.channels)
    public = settings.split(images)["calibration"][: settings.curvature_examples]
    known = calibrate(
        network,
        network.init(source_key("initialisation", seed)),
        images.pixels[public],
        images.labels[public].astype(np.int32),
        clip_examples=settings.clip_examples,
        num_eigenvalues=settings.num_eigenvalues,
        num_probes=settings.num_probes,
        curvature_seed=seed,
    )
    return {
        "clip_norm": known.clip_norm,
        "lambda_max": known.spectrum.largest,
        "eigenvalues": known.spectrum.eigenvalues.tolist(),
        "multiplicities": known.spectrum.multiplicities.tolist(),
    }


def prepared(
    shared: tuple[StudySettings, ImageSet],
    seed: int,
    condition: str,
    noising_matrix: np.ndarray,
    calibration: dict,
) -> dict:
    """The arguments of `cnn.train` for one run; an unstable rate is refused."""
    settings, images = shared
    momentum, schedule = CONDITIONS[condition]
    largest, clip_norm = calibration["lambda_max"], calibration["clip_norm"]
    peak = settings.rate_scale / largest if settings.rate_scale else settings.learning_rate
    limit = stability_limit(Momentum(momentum))
    if peak * largest >= limit:
        raise refuse(
            "learning_rate",
            f"eta lambda_max = {peak * largest:.3g} (seed {seed}, {condition})",
            f"heavy ball is unstable from {limit:.3g} on: lower it",
        )
    network = Network.for_device(settings.channels)
    parameters = network.init(source_key("initialisation", seed))
    sizes = {"steps": settings.steps, "batch_size": settings.batch_size}
    stddev = settings.noise_multiplier * clip_norm / settings.batch_size
    return {
        "network": network,
        "parameters": parameters,
        "images": images,
        "shards": shard_examples(settings.split(images)["train"], **sizes, order_seed=seed),
        "noise": correlated_noise(noising_matrix, len(parameters), stddev=stddev, noise_seed=seed),
        "learning_rates": schedules.FAMILIES[schedule](settings.steps, peak),
        "momentum": momentum,
        "clip_norm": clip_norm,
    }


def training_run(shared: tuple[StudySettings, ImageSet], *start) -> dict:
    """One run: outcomes at the checkpoints, clipping and losses at every step.

    `start` is what `prepared` takes after `shared`.
    """
    settings, images = shared
    arguments = prepared(shared, *start)
    split = settings.split(images)

    def visit(step, parameters):
        measured = {"step": step}
        for part in ("validation", "test"):
            last = step == settings.checkpoints[-1]
            chosen = split[part] if last else split[part][: settings.early_examples]
            pixels, labels = images.pixels[chosen], images.labels[chosen].astype(np.int32)
            accuracy, loss = evaluate(arguments["network"], parameters, pixels, labels)
            measured |= {f"{part}_accuracy": float(accuracy), f"{part}_loss": float(loss)}
        return measured

    run = train(**arguments, checkpoints=settings.checkpoints, visit=visit)
    return {
        "clip_norm": arguments["clip_norm"],
        "lambda_max": start[-1]["lambda_max"],
        "learning_rate": float(arguments["learning_rates"].max()),
        "checkpoints": run.visited,
        "clipped": run.clipped.tolist(),
        "losses": run.losses.tolist(),
    }
