"""Curvature of both signs and all sizes along the CNN study's runs without noise, and its damage.

The calibration's spectrum has Lanczos' largest values and the rest of the trace at one small
eigenvalue, nothing below zero. Quadrature gives every eigenvalue its place. The damage is linear in
the spectrum, so that a negative eigenvalue has a negative share: where the loss curves down, noise
lowers its expectation, and grows itself for as long as the curvature stays.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp._checks import refuse
from momentdp.damage import error_variances
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum, system_of
from momentdp.dynamics.spectra import quadrature
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies.cnn import hessian_vector_product, source_key, train
from momentdp.studies.cnn_study import StudySettings, prepared, run_identity
from momentdp.studies.cnn_tables import CONDITIONS, RESULTS
from momentdp.studies.images import ImageSet
from momentdp.studies.records import complete, read_record

NODES, PROBES = 16, 5  # Lanczos steps of a probe, and probes


def run_curvatures(
    settings: StudySettings,
    images: ImageSet,
    out: str | Path,
    *,
    condition: str,
    seeds: tuple[int, ...],
    workers: int = 1,
    scheduler: str | None = None,
) -> None:
    """A record `curvature.SEED.json` a seed: at the start, half-way and at the end of a run.

    Needs the calibrations in `out`. The images are those of the calibration, the probes of a seed
    the same at all three places.

    Raises:
        ValueError: no calibration, or one of other settings; damaged records.
    """
    out, jobs = Path(out), {}
    places = [0, settings.steps // 2, settings.steps]
    how = {"condition": condition, "places": places, "nodes": NODES, "probes": PROBES}
    for seed in seeds:
        identity = run_identity(settings, images, seed)
        start = out / f"calibration.{seed}.json"
        if not start.exists():
            raise refuse("out", f"{out} without {start.name}", "run the study there first")
        known = read_record(start, identity)
        arguments = (seed, condition, known, places)
        jobs[out / f"curvature.{seed}.json"] = ({**identity, **how}, arguments)
    complete(_curvatures, (settings, images), jobs, workers=workers, scheduler=scheduler)


def _curvatures(
    shared: tuple[StudySettings, ImageSet],
    seed: int,
    condition: str,
    calibration: dict,
    places: list[int],
) -> dict:
    settings, images = shared
    quiet = np.zeros((settings.steps, settings.steps))
    arguments = prepared(shared, seed, condition, quiet, calibration)
    public = settings.split(images)["calibration"][: settings.curvature_examples]
    pixels, labels = images.pixels[public], images.labels[public].astype(np.int32)

    def look(_, parameters):
        product = hessian_vector_product(arguments["network"], parameters, pixels, labels)
        how = len(parameters), NODES, PROBES, source_key("curvature", seed)
        nodes, weights = quadrature(product, *how)
        return {"nodes": nodes.tolist(), "weights": weights.tolist()}

    run = train(**arguments, checkpoints=places, visit=look)
    return {"curvatures": [look(0, arguments["parameters"]), *run.visited]}


def damage_by_curvature(mechanism: str = "iid", folder: Path = RESULTS) -> pd.DataFrame:
    """What the curvature at each place of a run, frozen over all steps, would make of the noise.

    A row a seed and place: the `trace`, the `most negative` and `largest` node, the `growth` of
    independent noise in the most negative direction (its error over that where nothing curves),
    and the final damage in nats of the mechanism in the directions `above zero` and `below zero`
    (paper eq. 3; curvatures in nats / parameter^2).
    `SE` are standard errors over the probes; they do not see that few nodes blur what lies close to
    zero, where most directions are.
    """
    rows = {}
    for path in sorted(Path(folder).glob("curvature.*.json")):
        record = read_record(path)
        known = read_record(path.with_name(f"calibration.{record['seed']}.json"))
        momentum, schedule = CONDITIONS[record["condition"]]
        steps = record["steps"]
        rates = schedules.FAMILIES[schedule](steps, record["learning_rate"])
        system = system_of(Momentum(momentum), rates)
        pool = catalogue(steps, pool=[mechanism, "iid"])
        scale = record["noise_multiplier"] * known["clip_norm"] / record["batch_size"]
        for place, found in zip(record["places"], record["curvatures"], strict=True):
            nodes, weights = np.array(found["nodes"]), np.array(found["weights"])
            variances = error_variances(pool[mechanism], system, nodes.ravel())[-1]
            shares = 0.5 * scale**2 * weights * nodes * variances.reshape(nodes.shape)
            above = np.maximum(shares, 0.0)
            lowest, flat = error_variances(pool["iid"], system, np.array([nodes.min(), 0.0]))[-1]
            rows[record["seed"], place] = {
                "trace": (weights * nodes).sum(),
                "trace SE": _over_probes(weights * nodes),
                "most negative": nodes.min(),
                "largest": nodes.max(),
                "growth": np.sqrt(lowest / flat),
                "above zero": above.sum(),
                "above SE": _over_probes(above),
                "below zero": np.minimum(shares, 0.0).sum(),
            }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["seed", "step"])


def summary(found: pd.DataFrame) -> dict[str, float]:
    """What `damage_by_curvature` says in numbers, by name: means or extremes over its seeds.

    Sizes as percentages of the start's (`calmer` half-way, `back` at the end), damages and gains
    (the negative of the damage of both signs) in nats; `growth` is rounded down to a power of ten.
    """
    first, half, last = (found.xs(step, level="step") for step in found.index.unique("step"))
    gain, half_gain = (-(place["above zero"] + place["below zero"]) for place in (first, half))
    back = 100 * last["largest"] / first["largest"]
    return {
        "growth": 10.0 ** np.floor(np.log10(first["growth"].min())),
        "negative": -100 * (first["most negative"] / first["largest"]).mean(),
        "calmer": 100 * (half["largest"] / first["largest"]).mean(),
        "calmer_below": 100 * (half["most negative"] / first["most negative"]).mean(),
        "back_least": back.min(),
        "back_most": back.max(),
        "first_gain": gain.min(),
        "half_gain": half_gain.min(),
        "half_gain_most": half_gain.max(),
        "half_least": half["above zero"].min(),
        "half_most": half["above zero"].max(),
        "trace_error": first["trace SE"].max(),
        "probes": PROBES,
        "nodes": NODES,
    }


def _over_probes(shares: Float[np.ndarray, "probes nodes"]) -> float:
    """Standard error of the sum of all shares, a probe a row."""
    return np.sqrt(len(shares)) * shares.sum(axis=1).std(ddof=1)
