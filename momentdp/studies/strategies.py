"""The strategies of the book: built here by the optimisers, committed, then only read.

``python -m momentdp.studies.strategies`` (``make mechanisms``) builds them all in a folder, one
file each, so that an interrupted run resumes, and bundles them with their SHA-256.
"""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

from momentdp.mechanisms import store
from momentdp.mechanisms.catalogue import MEMBERS, catalogue
from momentdp.studies import crossovers, logistic, logistic_task

STATIC = tuple(name for name, (needs, is_stored) in MEMBERS.items() if is_stored and not needs)
HORIZONS = (8, 32, 100, 128)
INTERVENTIONS = tuple((el, kappa) for el in (0.2, 0.4) for kappa in (10.0, 100.0))


def recipes():
    """(description, function that builds) of everything that the book reads."""
    for steps in HORIZONS:
        for name in STATIC:
            yield f"{name}, T={steps}", lambda n=name, t=steps: catalogue(t, pool=[n])
    for el, kappa in INTERVENTIONS:
        for name in crossovers.NOISECURVES:
            yield (
                f"{name}, el={el}, kappa={kappa:g}",
                lambda n=name, e=el, k=kappa: crossovers.native_pool(e, k, pool=[n]),
            )
    task = logistic_task.make_task()
    for name in crossovers.NOISECURVES:
        yield (
            f"{name}, logistic task",
            lambda n=name: logistic.native_pool(task, pool=[n]),
        )


def build(folder: Path, archive: Path) -> str:
    """Builds what ``folder`` lacks, bundles it into ``archive``; returns its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.update({store.CACHE: str(folder), store.REBUILD: "1"})
    for description, make in recipes():
        print(description, file=sys.stderr, flush=True)
        make()
    arrays = {}
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as entry:
            arrays |= {f"{path.stem}/{kind}": entry[kind] for kind in entry.files}
    np.savez_compressed(archive, **arrays)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.with_suffix(".sha256").write_text(f"{digest}  {archive.name}\n")
    return digest


if __name__ == "__main__":
    print(build(Path("runs/strategies"), store.FROZEN))
