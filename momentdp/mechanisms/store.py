"""Constructions kept by content: what was optimised once is read back, never optimised again.

The key is a hash of the construction's name and of every input that it looks at (numbers rounded
to 10 digits, so that the last bit of another processor makes no difference). The strategies of
the book are committed as ``frozen.npz`` with its SHA-256 beside it; others go to a cache folder.
"""

import hashlib
import os
import tempfile
import warnings
import zipfile
from functools import lru_cache
from pathlib import Path

import numpy as np
from platformdirs import user_cache_dir

from momentdp._checks import refuse
from momentdp.mechanisms.banded import Banded
from momentdp.mechanisms.dense import Dense
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.synthesis.problem import progress

FROZEN = Path(__file__).with_name("frozen.npz")
CACHE = "MOMENTDP_CACHE"  # environment: the cache folder
REBUILD = "MOMENTDP_REBUILD"  # environment: look at no committed strategy
FORMAT = 1  # raise it when a construction changes its meaning: old cache entries are then unused


def key(name: str, **inputs) -> str:
    """Content hash of a construction: its name and the inputs that it looks at."""
    parts = [f"{FORMAT}", name]
    for label in sorted(inputs):
        values = np.ravel(np.asarray(inputs[label], dtype=np.float64))
        parts.append(f"{label}=" + ",".join(f"{value:.9e}" for value in values))
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


def to_array(m: Mechanism) -> tuple[str, np.ndarray]:
    """Structure kind and its numbers."""
    structure = m.structure
    if isinstance(structure, Dense):
        return "dense", structure.strategy_matrix()[np.tril_indices(m.steps)]
    if isinstance(structure, Banded):
        return "banded", structure.diagonals
    if np.ptp(structure.column_scale) > 0:
        raise refuse("mechanism", m.name, "store only strategies that need an optimiser")
    scale = structure.column_scale[0]
    if structure._noising_coef is not None:
        return "inverse_banded", structure.noising_coef / scale
    return "toeplitz", structure.strategy_coef * scale


def from_array(kind: str, array: np.ndarray, steps: int, name: str) -> Mechanism:
    """The inverse of ``to_array``."""
    if kind == "dense":
        matrix = np.zeros((steps, steps))
        matrix[np.tril_indices(steps)] = array
        return Mechanism.from_strategy_matrix(matrix, name)
    if kind == "banded":
        return Mechanism.from_banded(array, name)
    argument = {"toeplitz": "strategy_coef", "inverse_banded": "noising_coef"}[kind]
    return Mechanism.from_toeplitz(steps=steps, **{argument: array}, name=name)


@lru_cache(maxsize=1)
def frozen() -> dict[str, tuple[str, np.ndarray]]:
    """The committed strategies: key -> (kind, array). Refused if their hash does not match."""
    if not FROZEN.exists():
        return {}
    verify()
    with np.load(FROZEN) as archive:
        return {name.split("/")[0]: (name.split("/")[1], archive[name]) for name in archive.files}


def verify() -> str:
    """SHA-256 of the committed strategies; ValueError if it is not the recorded one."""
    found = hashlib.sha256(FROZEN.read_bytes()).hexdigest()
    recorded = FROZEN.with_suffix(".sha256").read_text().split()[0]
    if found != recorded:
        raise refuse(FROZEN.name, f"SHA-256 {found[:12]}...", f"restore {recorded[:12]}...")
    return found


def cache_folder() -> Path:
    """MOMENTDP_CACHE, or the user's cache folder."""
    return Path(os.environ.get(CACHE) or user_cache_dir("momentdp")).expanduser()


def fetch(name: str, steps: int, build, **inputs) -> Mechanism:
    """The stored construction, or ``build()`` and store it (atomically)."""
    content = key(name, steps=steps, **inputs)
    if REBUILD not in os.environ and content in frozen():
        kind, array = frozen()[content]
        return from_array(kind, array, steps, name)
    path = cache_folder() / f"{content}.npz"
    kept = _read(path, steps, name)
    if kept is not None:
        return kept
    progress(f"building {name} for {steps} steps, once: it is kept in the cache")
    made = build().renamed(name)
    progress("")
    kind, array = to_array(made)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            np.savez(Path(scratch) / "entry.npz", **{kind: array})
            os.replace(Path(scratch) / "entry.npz", path)
    except OSError as error:
        warnings.warn(f"{name} was built, but not kept in {path.parent}: {error}", stacklevel=2)
    return made


def _read(path: Path, steps: int, name: str) -> Mechanism | None:
    """The entry, or None where there is none or a damaged one, which is then built again."""
    if not path.exists():
        return None
    try:
        with np.load(path) as archive:
            (kind,) = archive.files
            kept = from_array(kind, archive[kind], steps, name).require_steps(steps)
        if abs(kept.sensitivity() - 1) < 1e-9:
            return kept
        problem = "its sensitivity is not 1"
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        problem = str(error)
    warnings.warn(f"{path.name} of the cache is damaged ({problem}): rebuilding", stacklevel=3)
    return None
