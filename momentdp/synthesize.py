"""Mechanisms designed for one optimizer: problem P1 with the Q of its own dynamics."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from momentdp._checks import count, finite_array, number, refuse
from momentdp.damage import quadratic_factor, trajectory_gram, transferred_variance
from momentdp.dynamics.optimizers import Momentum, check_rates
from momentdp.dynamics.spectra import as_spectrum
from momentdp.mechanisms.constructions import from_solution
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.synthesis.banded import solve_banded
from momentdp.synthesis.dense import solve_dense
from momentdp.synthesis.problem import P1Solution
from momentdp.synthesis.toeplitz import optimize_inverse_banded, optimize_toeplitz

STRUCTURES = ("dense", "banded", "toeplitz", "inverse_banded")
LARGEST_DENSE = 512  # "auto" leaves the dense class out above this horizon


@dataclass(frozen=True)
class Design:
    """A solved problem: the mechanism and the proof of how good it is.

    ``objective`` is tr(Q X^-1) of the problem that was solved, its regularisation, robustness and
    trajectory weight included (without them: twice the damage at unit noise multiplier).
    ``dual_bound`` is a proven lower bound on that objective for the whole class (NaN where none is
    known), ``gap`` their relative difference. For the damage itself call ``damage(design.mechanism,
    ...)`` and ``damage_floor``.
    """

    mechanism: Mechanism
    solution: P1Solution

    def __repr__(self) -> str:
        return f"Design({self.mechanism!r}, objective {self.objective:.6g}, gap {self.gap:.2g})"

    @property
    def objective(self) -> float:
        """tr(Q X^-1)."""
        return self.solution.objective

    @property
    def dual_bound(self) -> float:
        """Below every objective of the class; NaN where no bound is known."""
        return self.solution.dual_bound

    @property
    def gap(self) -> float:
        """(objective - dual_bound) / objective; NaN where no bound is known."""
        return self.solution.gap

    @property
    def converged(self) -> bool:
        """False: the solver stopped early."""
        return self.solution.converged

    @property
    def iterations(self) -> int:
        """Sweeps or gradients that the solver took."""
        return self.solution.iterations

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the solver has to say about this solution."""
        return self.solution.warnings


def solve_p1(
    Q=None,
    *,
    factor=None,
    bands: int | None = None,
    regularisation: float = 0.0,
    floor: float = 0.0,
) -> Design:
    """Minimise tr(Q X^-1) over X = C'C with unit diagonal, banded if ``bands`` is given (P1, B.2).

    Args:
        Q: (steps, steps) positive semidefinite; or factor: (steps, r) with Q = F F'.
        bands: X_ij = 0 for |i - j| >= bands.
        regularisation: eps adds eps tr(Q) / steps I to Q.
        floor: X at least floor I (banded only).

    Raises:
        ValueError: Q not symmetric or not PSD, bands or floor out of range.
    """
    if bands is None and floor:
        raise refuse("floor", floor, "pass bands with it; or use regularisation")
    if bands is None:
        solution = solve_dense(Q, factor=factor, regularisation=regularisation)
    else:
        solution = solve_banded(
            Q, factor=factor, bands=bands, regularisation=regularisation, floor=floor
        )
    return Design(from_solution(solution, "p1"), solution)


def design_factor(
    optimizer, spectrum, learning_rates, *, trajectory_weight: float = 0.0, robust_to=None
) -> Float[np.ndarray, "steps rank"]:
    """F with F F' = Q of D_dyn(T) + trajectory_weight x mean_t D_dyn(t), averaged over errors.

    Args:
        robust_to: {"curvature": factors, "momentum": values}; Q is the mean over their grid.
    """
    spectrum, rates = as_spectrum(spectrum), check_rates(learning_rates)
    weight = number("trajectory_weight", trajectory_weight, 0.0)
    if not isinstance(robust_to, (Mapping, type(None))):
        raise refuse("robust_to", repr(robust_to), 'pass {"curvature": [...], "momentum": [...]}')
    errors = {k: finite_array(f"robust_to[{k!r}]", v, 1) for k, v in (robust_to or {}).items()}
    if unknown := set(errors) - {"curvature", "momentum"}:
        raise refuse("robust_to", sorted(unknown), 'pass keys "curvature" and "momentum" only')
    optimizers = [optimizer]
    if "momentum" in errors:
        if not isinstance(optimizer, Momentum):
            raise refuse("robust_to", "momentum", "pass a Momentum optimizer with it")
        optimizers = [replace(optimizer, momentum=float(mu)) for mu in errors["momentum"]]
    spectra = [spectrum.scaled(float(factor)) for factor in errors.get("curvature", (1.0,))]
    cases = list(itertools.product(optimizers, spectra))
    final = np.concatenate([quadratic_factor(*case, rates) for case in cases], axis=1)
    if weight == 0 and final.shape[1] <= len(rates):
        return final / np.sqrt(len(cases))
    total = final @ final.T
    if weight:
        total += weight * sum(trajectory_gram(*case, rates) for case in cases)
    values, vectors = np.linalg.eigh(total / len(cases))
    return vectors * np.sqrt(np.maximum(values, 0.0))


def synthesize(
    optimizer,
    spectrum,
    learning_rates,
    *,
    structure: str = "auto",
    bands: int = 16,
    regularisation: float = 1e-3,
    robust_to=None,
    trajectory_weight: float = 0.0,
) -> Design:
    """The mechanism of least predicted damage for this optimizer, of sensitivity 1.

    Made for single participation; under repeated participation compare it by ``rank``.

    Args:
        optimizer, spectrum, learning_rates: as in ``damage``.
        structure: "dense", "banded", "toeplitz", "inverse_banded", or "auto", which solves each
            class and keeps the one with the lowest predicted objective.
        bands: bands of C, or coefficients of C or C^-1.
        regularisation: eps adds eps tr(Q) / steps I. Without it the final-loss optimum has
            unbounded noise at single steps and breaks when curvature is off.
        robust_to: see ``design_factor``.
        trajectory_weight: how much the mean of D_dyn(t) counts beside the final D_dyn.

    Raises:
        ValueError: unknown structure, and what ``damage`` and ``solve_p1`` refuse.
    """
    if structure not in (*STRUCTURES, "auto"):
        raise refuse("structure", repr(structure), f"pass one of {', '.join(STRUCTURES)}, auto")
    factor = design_factor(
        optimizer,
        spectrum,
        learning_rates,
        robust_to=robust_to,
        trajectory_weight=trajectory_weight,
    )
    steps = len(factor)
    bands = min(count("bands", bands), steps)
    if structure != "auto":
        return _solve(structure, factor, bands, regularisation)
    classes = STRUCTURES if steps <= LARGEST_DENSE else STRUCTURES[1:]
    designs = [_solve(one, factor, bands, regularisation) for one in classes]
    return min(designs, key=lambda d: transferred_variance(d.mechanism, factor.T).sum())


def _solve(structure, factor, bands, regularisation) -> Design:
    options = {"factor": factor, "regularisation": regularisation}
    if structure == "dense":
        solution = solve_dense(**options)
    elif structure == "banded":
        solution = solve_banded(bands=bands, **options)
    else:
        solver = optimize_toeplitz if structure == "toeplitz" else optimize_inverse_banded
        solution = solver(coefs=bands, **options)
    return Design(from_solution(solution, f"synthesised_{structure}"), solution)
