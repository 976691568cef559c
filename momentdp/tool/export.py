"""A chosen mechanism as files: for jax-privacy through ``load``, for any other code as rows of C^-1."""

import json
from pathlib import Path

import numpy as np

from momentdp._checks import refuse
from momentdp.mechanisms.banded import Banded
from momentdp.mechanisms.dense import Dense
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.mechanisms.toeplitz import Toeplitz
from momentdp.tool.choice import Choice

LARGEST_ROWS = 8192  # steps up to which all rows of C^-1 are written: half a GB
CONVENTION = """\
Noise for {name}, {steps} steps.

Draw w_0, w_1, ... independently, each shaped like the parameters, with standard deviation
stddev = {stddev:.9g} in every entry. At step t (from 0) add

    z_t = sum over j <= t of noising_matrix[t, j] * w_j

to the sum of clipped gradients AFTER it was divided by normalize_by = {normalize_by:g}; then take the
optimizer's step. Row t of noising_matrix.npy is row t of C^-1 (lower triangular, {steps} x {steps});
the covariance over steps is stddev^2 C^-1 C^-T. stddev is
noise multiplier ({noise_multiplier:.9g}) x sensitivity ({sensitivity:.9g}) x l2_clip_norm ({l2_clip_norm:g})
x neighbouring factor / normalize_by, so nothing is to be multiplied to it again.

The guarantee, epsilon {epsilon:g} and delta {delta:g} ({neighboring_relation}), needs: per-example
gradients clipped to norm {l2_clip_norm:g}; participation: {participation}; fresh w, of a
cryptographic generator in production; and nothing else published of the data.

jax-privacy:  m, stddev = momentdp.tool.export.load(folder)
              matrix_factorization_privatizer(m.to_jax_privacy(), stddev=stddev, prng_key=key)
{long}"""


def save(choice: Choice, folder: str | Path, mechanism: str | None = None) -> Path:
    """Write one mechanism (the best, unless named) with all that its noise needs.

    strategy.npz (its structure), noise.json (numbers), README.txt (the convention in words) and,
    up to 8192 steps, noising_matrix.npy (C^-1); above, the coefficients in strategy.npz have to do.

    Raises:
        ValueError: a name that the ranking does not have.
    """
    name = mechanism or choice.best
    if name not in choice.mechanisms:
        raise refuse("mechanism", repr(name), f"choose one of {', '.join(choice.mechanisms)}")
    m, run, row = choice.mechanisms[name], choice.run, choice.ranking.loc[name]
    sampled = name in choice.amplified
    participation = dict(run.participation) or {"max_participations": 1}
    numbers = {
        "name": name,
        "steps": m.steps,
        "stddev": float(row["noise_stddev"]),
        "noise_multiplier": float(row["noise_multiplier"]),
        "sensitivity": float(row["sensitivity"]),
        "epsilon": float(run.epsilon),
        "delta": float(run.delta),
        "participation": f"(cyclic) Poisson sampling, {dict(run.sampling)}"
        if sampled
        else participation,  # fmt: skip
    } | run.units
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "strategy.npz", **_arrays(m))
    (folder / "noise.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    long = "" if m.steps <= LARGEST_ROWS else "\nThe run is too long for noising_matrix.npy: strategy.npz holds the coefficients of C or C^-1.\n"  # fmt: skip
    (folder / "README.txt").write_text(CONVENTION.format(**numbers, long=long), encoding="utf-8")
    if not long:
        np.save(folder / "noising_matrix.npy", m.noising_matrix)
    return folder


def load(folder: str | Path) -> tuple[Mechanism, float]:
    """The mechanism of a folder that ``save`` wrote, and the standard deviation of its white noise.

    Raises:
        ValueError: no such folder, or files that are not its own.
    """
    folder = Path(folder)
    if not (folder / "noise.json").is_file():
        raise refuse("folder", folder, "give a folder that `momentdp rank --export` wrote")
    numbers = json.loads((folder / "noise.json").read_text(encoding="utf-8"))
    with np.load(folder / "strategy.npz") as archive:
        arrays = {name: archive[name] for name in archive.files}
    if "matrix" in arrays:
        structure = Dense(arrays["matrix"])
    elif "diagonals" in arrays:
        structure = Banded(arrays["diagonals"])
    else:
        structure = Toeplitz(numbers["steps"], **arrays)
    return Mechanism(structure, numbers["name"]), numbers["stddev"]


def _arrays(m: Mechanism) -> dict[str, np.ndarray]:
    s = m.structure
    if isinstance(s, Toeplitz):
        known = "strategy_coef" if s._noising_coef is None else "noising_coef"
        return {known: getattr(s, known), "column_scale": s.column_scale}
    return {"diagonals": s.diagonals} if isinstance(s, Banded) else {"matrix": s.strategy_matrix()}
