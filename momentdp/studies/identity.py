"""The identity grid (paper 2.2, B.3): NoiseCurve's objective is D_dyn at mu = 0, three ways."""

import itertools

import numpy as np
import pandas as pd

from momentdp.damage import damage
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.catalogue import catalogue

HORIZONS = (8, 32, 128)
STEP_SIZES = (0.05, 0.1, 0.3, 0.6)  # eta lambda_max
MECHANISMS = (
    "iid",
    "dense",
    "bandmf_mean",
    "bandmf_max",
    "toeplitz_mean",
    "toeplitz_max",
    "bandinv_mean",
    "lr_aware_sqrt",
)
COMPUTATIONS = ("objective", "transfer", "covariance")


def published_objective(m, spectrum, learning_rate: float) -> float:
    """(eta^2 / 2) tr(X^-1 V'MV) as NoiseCurve prints it (eq. 5), through solves with C."""
    powers = np.arange(m.steps)[::-1]
    V = (1 - learning_rate * spectrum.eigenvalues)[:, None] ** powers
    M = spectrum.multiplicities * spectrum.eigenvalues
    half = m.structure.solve_transposed(V)
    return 0.5 * learning_rate**2 * float(M @ (half**2).sum(axis=1))


def explicit_objective(m, spectrum, learning_rate: float) -> float:
    """The same through X = C'C and a solve with it: what rounding does to the printed formula."""
    powers = np.arange(m.steps)[::-1]
    V = (1 - learning_rate * spectrum.eigenvalues)[:, None] ** powers
    M = spectrum.multiplicities * spectrum.eigenvalues
    C = m.strategy_matrix
    return 0.5 * learning_rate**2 * float(np.trace(np.linalg.solve(C.T @ C, (V.T * M) @ V)))


def propagated_covariance(m, spectrum, learning_rate: float) -> float:
    """E[loss] by carrying e_t as a row of coefficients on w through the recursion of eq. 4."""
    shrink = (1 - learning_rate * spectrum.eigenvalues)[:, None]
    error = np.zeros((len(spectrum.eigenvalues), m.steps))
    for noise_row in m.noising_matrix:
        error = shrink * error - learning_rate * noise_row
    M = spectrum.multiplicities * spectrum.eigenvalues
    return 0.5 * float(M @ (error**2).sum(axis=1))


def compare(m, spectrum, learning_rate: float) -> dict[str, float]:
    """The three computations of B.3 for one mechanism and one constant rate."""
    rates = schedules.constant(m.steps, learning_rate)
    return {
        "objective": published_objective(m, spectrum, learning_rate),
        "transfer": damage(m, Momentum(0.0), spectrum, rates),
        "covariance": propagated_covariance(m, spectrum, learning_rate),
    }


def grid(bands: int = 16) -> pd.DataFrame:
    """All 576 configurations: steps, spectrum, el, mechanism and the three computed losses."""
    rows = []
    for steps in HORIZONS:
        pool = catalogue(steps, bands=bands, pool=MECHANISMS)
        cases = itertools.product(spectra.BOOK.items(), STEP_SIZES, pool.items())
        for (label, spectrum), el, (name, m) in cases:
            losses = compare(m, spectrum, el / spectrum.largest)
            rows.append({"steps": steps, "spectrum": label, "el": el, "mechanism": name} | losses)
    return pd.DataFrame(rows)


def worst_errors(table: pd.DataFrame) -> pd.Series:
    """Largest relative difference of each pair of computations over a grid."""
    pairs = itertools.combinations(COMPUTATIONS, 2)
    return pd.Series({f"{a} / {b}": float((table[a] / table[b] - 1).abs().max()) for a, b in pairs})


def ledger_rows() -> dict[str, float | int]:
    """This study's values for the ledger."""
    table = grid()
    worst = worst_errors(table)
    return {
        "identity.configs": len(table),
        "identity.worst_relative_error": worst.max(),
        "identity.all_below": worst.max(),
    }
