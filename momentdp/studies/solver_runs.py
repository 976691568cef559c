"""Single runs of the study of solvers: problem P1 as the paper solves it, certified, regularised,
and as a design. Each returns plain numbers for a record."""

import numpy as np
import scipy.optimize

from momentdp.damage import damage, damage_curve, quadratic_factor, trajectory_damage
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation import scores
from momentdp.evaluation.rank import damage_floor
from momentdp.mechanisms.catalogue import PAPER, catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.synthesis.adam import PENALTY, START_SCALE, solve_adam
from momentdp.synthesis.banded import solve_banded
from momentdp.synthesis.problem import lower_from_gram
from momentdp.synthesize import STRUCTURES, synthesize

FLOOR, STEPS, BANDS = 1e-3, 128, 16
WAYS = ("penalised", "refused", "shifted")
REFUSED = 1e10  # what the corrected script of the paper sees in place of an indefinite X


def p1_factor(steps: int, kappa: float, el: float) -> np.ndarray:
    """F with F F' = V'MV: no momentum, constant rate, and that rate left out, as in the paper."""
    spectrum = spectra.log_spaced(16, kappa)
    rate = el / spectrum.largest
    return quadratic_factor(Momentum(0.0), spectrum, np.full(steps, rate)) / rate


def paper_lbfgs(factor, bands: int, start_seed: int = 0, indefinite: str = "penalised"):
    """(X, objective) of the paper's second solver (B.2): L-BFGS-B on the free entries of X.

    Tolerances are the paper's, start and floor those of its Adam. What is done below the floor:
    "penalised", its penalty; "refused", the penalty, and a huge value where X is not positive
    definite; "shifted", the error that the paper reports, a multiple of I added for free.
    """
    steps, shifting = len(factor), indefinite == "shifted"
    rows, columns = np.tril_indices(steps, -1)
    inside = rows - columns < bands
    rows, columns, X = rows[inside], columns[inside], np.eye(steps)

    def objective(entries):
        X[rows, columns] = X[columns, rows] = entries
        values, vectors = np.linalg.eigh(X)
        if values[0] <= 0 and indefinite == "refused":
            return REFUSED, np.zeros(len(rows))
        short = max(0.0, FLOOR - values[0])
        solved = vectors @ ((vectors.T @ factor) / (values + short * shifting)[:, None])
        value, slope = np.sum(factor * solved), -solved @ solved.T
        if short:  # its own slope is -v v' for the lowest eigenvector v
            charge = np.trace(slope) if shifting else 2 * PENALTY * short
            slope -= charge * np.outer(vectors[:, 0], vectors[:, 0])
            value += 0.0 if shifting else PENALTY * short**2
        return float(value), 2 * slope[rows, columns]

    start = START_SCALE * np.random.default_rng(start_seed).standard_normal(len(rows))
    options = {"maxiter": 2000, "ftol": 1e-14, "gtol": 1e-10}
    found = scipy.optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    return X, objective(found.x)[0]


def crosscheck(steps: int, bands: int) -> dict:
    """One configuration of B.2 (kappa 100, eta lambda_max .1): a certified optimum, and where the
    paper's solvers end from ten starts. Objectives have the rate in Q."""
    scale, factor = 0.1**2, p1_factor(steps, 100.0, 0.1)
    solved = solve_banded(factor=factor, bands=bands)
    floored = solve_banded(factor=factor, bands=bands, floor=FLOOR)
    found = {"optimum": scale * solved.objective, "bound": scale * solved.dual_bound}
    found |= {"with floor": scale * floored.objective, "lambda_min": floored.lambda_min}
    ends = {}
    for seed in range(10):
        best, last, value = solve_adam(factor=factor, bands=bands, iterations=3000, start_seed=seed)
        ends.setdefault("Adam, best feasible", []).append((best.objective, best.lambda_min))
        ends.setdefault("Adam, last", []).append((value, np.linalg.eigvalsh(last)[0]))
        for way in WAYS:
            X, value = paper_lbfgs(factor, bands, seed, way)
            ends.setdefault(f"L-BFGS-B, {way}", []).append((value, np.linalg.eigvalsh(X)[0]))
    found["ends"] = {name: [[scale * v, float(low)] for v, low in e] for name, e in ends.items()}
    C = floored.strategy_matrix
    X = C.T @ C
    recovered = lower_from_gram(X)
    found["gram_residual"] = float(np.linalg.norm(recovered.T @ recovered - X) / np.linalg.norm(X))
    return found


def adam_start(start_seed: int, relative_change: float = 0.0) -> dict:
    """Where the paper's Adam ends at T = 128 from one start, or from one changed by rounding."""
    factor = p1_factor(STEPS, 10.0, 0.4)
    free = sum(STEPS - k for k in range(1, BANDS))
    start = START_SCALE * np.random.default_rng(start_seed).standard_normal(free)
    best, last, value = solve_adam(factor=factor, bands=BANDS, start=start * (1 + relative_change))
    smallest = float(np.linalg.eigvalsh(last)[0])
    return {"last": value, "last lambda_min": smallest, "best": best.objective}


def regularised(eps: float) -> dict:
    """P1 at T = 128 with a regularisation: the mechanism, its noise and what it costs elsewhere."""
    factor = p1_factor(STEPS, 10.0, 0.4)
    solution = solve_banded(factor=factor, bands=BANDS, regularisation=eps, tolerance=1e-5)
    m = Mechanism.from_banded(solution.factor)
    spectrum, rates = spectra.log_spaced(16, 10.0), schedules.constant(STEPS, 0.4)
    pool = catalogue(STEPS, pool=[name for name in PAPER if name != "noisecurve"])
    found = {"lambda_min": solution.lambda_min, "gap": solution.gap}
    found["objective"] = float(np.sum(m.structure.solve_transposed(factor.T) ** 2))
    found["MeanSE"] = scores.mean_se(m, Momentum(0.0), spectrum, rates)
    found["noise"] = np.linalg.norm(m.noising_matrix, axis=1).tolist()
    found["spectrum"] = np.linalg.svd(m.strategy_matrix, compute_uv=False).tolist()
    cases = {"mu 0": (0.0, 1.0), "mu 0.9": (0.9, 1.0), "curvature x 2": (0.0, 2.0)}
    for case, (mu, factor) in cases.items():
        arguments = Momentum(mu), spectrum.scaled(factor), rates
        others = [damage(other, *arguments) for other in pool.values()]
        found[f"{case}: damage"] = own = damage(m, *arguments)
        found[f"{case}: over dense"] = own / damage(pool["dense"], *arguments)
        found[f"{case}: rank"] = 1 + sum(other < own for other in others)
    return found


def unregularised(gradients: int) -> dict:
    """P1 at T = 128 with nothing to bound the noise, stopped after so many gradients."""
    factor = p1_factor(STEPS, 10.0, 0.4)
    solution = solve_banded(factor=factor, bands=BANDS, max_iterations=gradients)
    m = Mechanism.from_banded(solution.factor)
    found = {"gradients": solution.iterations, "converged": solution.converged}
    found["objective"] = float(np.sum(m.structure.solve_transposed(factor.T) ** 2))
    found["noise"] = np.linalg.norm(m.noising_matrix, axis=1).tolist()
    found["spectrum"] = (np.linalg.svd(m.strategy_matrix, compute_uv=False) ** 2).tolist()
    return found


def trajectory(momentum: float, schedule: str, kappa: float) -> dict:
    """D_dyn(T) and mean_t D_dyn(t) of Table 3's pool, also as seen through a wrong curvature."""
    rates = schedules.FAMILIES[schedule](STEPS, 0.4)
    pool = catalogue(STEPS, pool=[name for name in PAPER if name != "noisecurve"])
    found = {}
    for scale in (1.0, 0.5, 2.0):
        spectrum = spectra.log_spaced(16, kappa).scaled(scale)
        curves = [damage_curve(m, Momentum(momentum), spectrum, rates) for m in pool.values()]
        found[f"final x {scale:g}"] = [float(curve[-1]) for curve in curves]
        found[f"mean x {scale:g}"] = [float(curve.mean()) for curve in curves]
    return found


def synthesis(momentum: float, el: float, schedule: str, kappa: float) -> dict:
    """Damage of the whole catalogue and of what is designed for one optimizer, for that optimizer
    and for others: curvature halved or doubled, 1 - mu halved or doubled."""
    spectrum, rates = spectra.log_spaced(16, kappa), schedules.FAMILIES[schedule](STEPS, el)
    home = Momentum(momentum), spectrum, rates
    given = {"learning_rates": rates, "spectrum": spectrum, "momentum": momentum}
    pool = catalogue(STEPS, pool="all", **given)
    designs = {name: synthesize(*home, structure=name) for name in STRUCTURES}
    streaming = min(STRUCTURES[1:], key=lambda name: damage(designs[name].mechanism, *home))
    slower, faster = max(0.0, 2 * momentum - 1), (1 + momentum) / 2
    errors = {"curvature": (0.5, 1.0, 2.0)}
    both = errors | {"momentum": sorted({slower, momentum, faster})}
    variants = {"eps 1e-6": {"regularisation": 1e-6}, "eps 1e-2": {"regularisation": 1e-2}}
    variants |= {"robust": {"robust_to": errors}, "robust to both": {"robust_to": both}}
    variants |= {"trajectory": {"trajectory_weight": 1.0}}
    for name, options in variants.items():
        designs[name] = synthesize(*home, structure=streaming, **options)
    designs["default"] = designs[streaming]
    everybody = pool | {f"synthesised: {name}": d.mechanism for name, d in designs.items()}
    bounds = {n: d.dual_bound / d.objective for n, d in designs.items() if d.dual_bound > 0}
    found = {"streaming": streaming, "bound over objective": bounds}
    truths = {"home": home, "curvature / 2": (home[0], spectrum.scaled(0.5), rates)}
    truths |= {"curvature x 2": (home[0], spectrum.scaled(2.0), rates)}
    truths |= {"less momentum": (Momentum(slower), *home[1:])}
    truths |= {"more momentum": (Momentum(faster), *home[1:])}
    for truth, arguments in truths.items():
        found[truth] = {name: damage(m, *arguments) for name, m in everybody.items()}
        found[truth]["floor"] = damage_floor(*arguments)
    found["mean"] = {name: trajectory_damage(m, *home) for name, m in everybody.items()}
    return found
