"""What G.1 leaves open at the start: how the largest curvature, and so eta_0, hangs on it."""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp.studies.cnn import hessian_vector_product, largest_eigenvalue, source_key
from momentdp.studies.cnn_study import StudySettings
from momentdp.studies.cnn_tables import RESULTS
from momentdp.studies.images import ImageSet
from momentdp.studies.network import Network
from momentdp.studies.records import complete, read_record

WEIGHTS = {"He": 2.0, "LeCun": 1.0, "PyTorch's default": 1 / 3}  # variance times fan-in
LANCZOS_STEPS = 16
INPUTS = {"0 to 1": (0.0, 255.0), "-1 to 1": (127.5, 127.5)}  # pixels are scaled to


def run_starts(settings: StudySettings, images: ImageSet, out: str | Path, seed: int = 0) -> None:
    """A record of the largest curvature at each start of one seed, on `clip_examples` images."""
    path = Path(out) / f"starts.{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    chosen = ("calibration", "clip_examples", "data_seed", "channels", "steps", "batch_size")
    identity = {name: asdict(settings)[name] for name in chosen}
    identity |= {"channels": list(settings.channels), "seed": seed, "data_sha256": images.sha256}
    complete(_starts, (settings, images), {path: (identity, (seed,))})


def _starts(shared: tuple[StudySettings, ImageSet], seed: int) -> dict:
    settings, images = shared
    public = settings.split(images)["calibration"][: settings.clip_examples]
    pixels, labels = images.pixels[public], images.labels[public].astype(np.int32)
    key, found = source_key("initialisation", seed), {}
    for scaling, inputs in INPUTS.items():
        network = replace(Network.for_device(settings.channels), inputs=inputs)
        for weights, gain in WEIGHTS.items():
            start = network.init(key, gain)
            product = hessian_vector_product(network, start, pixels, labels)
            how = {"steps": LANCZOS_STEPS, "curvature_seed": seed}
            found[f"{weights}, {scaling}"] = largest_eigenvalue(product, len(start), **how)
    return {"lambda_max": found}


def starts_table(folder: Path = RESULTS, seed: int = 0) -> pd.DataFrame:
    """Largest curvature and 0.3 over it, by weights and input scaling."""
    found = read_record(Path(folder) / f"starts.{seed}.json")["lambda_max"]
    table = pd.DataFrame({"largest curvature": pd.Series(found)})
    return table.assign(**{"eta_0": 0.3 / table["largest curvature"]})
