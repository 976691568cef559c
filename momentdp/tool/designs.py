"""Mechanisms designed for a run, kept in the cache with their certificates."""

import os
import tempfile
from dataclasses import fields, replace

import numpy as np

from momentdp.damage import damage, trajectory_damage
from momentdp.mechanisms import store
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.constructions import from_solution
from momentdp.synthesis.problem import P1Solution, progress
from momentdp.synthesize import LARGEST_DENSE, Design, synthesize
from momentdp.tool.run import LONG, Run

# Toeplitz classes cannot put unbounded noise on single steps, so they need less regularisation.
REGULARISATION = {"dense": 1e-3, "banded": 1e-3, "toeplitz": 1e-4, "inverse_banded": 1e-4}
SCALES = (0.5, 1.0, 2.0)  # of curvature, for the robust design
WAY = 0.1  # weight of the damage on the way, both parts measured by those of independent noise


def for_run(run: Run) -> dict[str, Design]:
    """A design of each class that the horizon allows, and two more of the leading streaming class.

    ``synthesised_robust`` is for half, once and twice the curvature, ``synthesised_balanced`` for
    the final damage plus its mean on the way. Under repeated participation the bands of C stay
    within min_sep, so that columns of one example never overlap; the ranking calibrates each by its
    own sensitivity.
    """
    classes = ("banded", "toeplitz", "inverse_banded") if run.steps <= LONG else ("inverse_banded",)
    case = run.optimizer, run.spectrum, run.learning_rates
    found = {one: _kept(run, one) for one in classes}
    leading = min(found, key=lambda k: damage(found[k].mechanism, *case, **run.participation))
    if run.steps <= LARGEST_DENSE:
        found["dense"] = _kept(run, "dense")
    try:
        found["robust"] = _kept(run, leading, "robust")
    except ValueError:
        pass  # twice the curvature is unstable at this constant rate: no such design
    if run.steps <= LONG:
        found["balanced"] = _kept(run, leading, "balanced")
    return {
        f"synthesised_{name}": replace(
            design, mechanism=design.mechanism.renamed(f"synthesised_{name}")
        )
        for name, design in found.items()
    }


def _kept(run: Run, structure: str, aim: str = "final") -> Design:
    """``synthesize`` for a run, read back from the cache where it was solved before."""
    bands = run.bands
    if run.is_repeated and structure in ("banded", "toeplitz"):
        bands = min(bands, run.participation["min_sep"])
    regularisation = REGULARISATION[structure]
    system = run.optimizer.system(run.learning_rates)
    content = store.key(
        f"design {structure} {aim}",
        bands=bands,
        regularisation=regularisation,
        eigenvalues=run.spectrum.eigenvalues,
        multiplicities=run.spectrum.multiplicities,
        **{f"system_{name}": np.asarray(part) for name, part in system._asdict().items()},
    )
    path = store.cache_folder() / f"{content}.npz"
    if path.exists():
        with np.load(path) as archive:
            kept = {name: archive[name] for name in archive.files}
        kept = {name: value.item() if value.ndim == 0 else value for name, value in kept.items()}
        solution = P1Solution(**kept)
        return Design(from_solution(solution, structure), solution)
    progress(f"designing a {structure} strategy for this run, once: it is kept in the cache")
    options = {"structure": structure, "bands": bands, "regularisation": regularisation}
    case = run.optimizer, run.spectrum, run.learning_rates
    if aim == "robust":
        options["robust_to"] = {"curvature": SCALES}
    if aim == "balanced":
        plain = catalogue(run.steps, pool=["iid"])["iid"]
        options["trajectory_weight"] = WAY * damage(plain, *case) / trajectory_damage(plain, *case)
    design = synthesize(*case, **options)
    numbers = {f.name: np.asarray(getattr(design.solution, f.name)) for f in fields(P1Solution)}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        entry = os.path.join(scratch, "entry.npz")
        np.savez(entry, **{k: v for k, v in numbers.items() if k not in ("warnings", "history")})
        os.replace(entry, path)
    return design
