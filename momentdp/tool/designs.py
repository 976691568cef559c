"""Mechanisms designed for a run, kept in the cache with their certificates."""

import os
import tempfile
from dataclasses import fields, replace

import numpy as np

from momentdp.mechanisms import store
from momentdp.mechanisms.constructions import from_solution
from momentdp.synthesis.problem import P1Solution, progress
from momentdp.synthesize import LARGEST_DENSE, Design, synthesize
from momentdp.tool.run import LONG, Run

ROBUST = {"curvature": (0.5, 1.0, 2.0)}
REGULARISATION = 1e-3


def for_run(run: Run) -> dict[str, Design]:
    """A design of each class that the horizon allows, and of the leading one a robust version.

    Under repeated participation bands stay within min_sep, so that the columns of a banded
    strategy never overlap and its guarantee is that of one participation times the root of their
    number; the ranking calibrates the other classes by their own sensitivity.
    """
    classes = ("banded", "toeplitz", "inverse_banded") if run.steps <= LONG else ("inverse_banded",)
    if run.steps <= LARGEST_DENSE:
        classes = ("dense", *classes)
    made = {f"synthesised_{one}": kept(run, one) for one in classes}
    try:
        made["synthesised_robust"] = kept(run, classes[-1], robust_to=ROBUST)
    except ValueError:
        pass  # twice the curvature is unstable at this rate: no robust version
    return {
        name: replace(design, mechanism=design.mechanism.renamed(name))
        for name, design in made.items()
    }


def kept(run: Run, structure: str, robust_to=None) -> Design:
    """``synthesize`` for a run, read back from the cache where it was solved before."""
    bands = run.bands
    if run.is_repeated and structure in ("banded", "toeplitz"):
        bands = min(bands, run.participation["min_sep"])
    system = run.optimizer.system(run.learning_rates)
    content = store.key(
        f"design {structure} {sorted((robust_to or {}).items())}",
        bands=bands,
        regularisation=REGULARISATION,
        eigenvalues=run.spectrum.eigenvalues,
        multiplicities=run.spectrum.multiplicities,
        **{f"system_{name}": np.asarray(part) for name, part in system._asdict().items()},
    )
    path = store.cache_folder() / f"{content}.npz"
    if path.exists():
        with np.load(path) as archive:
            solution = P1Solution(**{name: archive[name][()] for name in archive.files})
        return Design(from_solution(solution, f"synthesised_{structure}"), solution)
    progress(f"designing a {structure} strategy for this run, once: it is kept in the cache")
    options = {"structure": structure, "bands": bands, "regularisation": REGULARISATION}
    design = synthesize(
        run.optimizer, run.spectrum, run.learning_rates, robust_to=robust_to, **options
    )
    numbers = {f.name: getattr(design.solution, f.name) for f in fields(P1Solution)}
    numbers = {k: np.asarray(v) for k, v in numbers.items() if k not in ("warnings", "history")}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        np.savez(os.path.join(scratch, "entry.npz"), **numbers)
        os.replace(os.path.join(scratch, "entry.npz"), path)
    return design
