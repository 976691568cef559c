"""P1 without a band, and the floor under every mechanism: a dual problem in T unknowns."""

import numpy as np
import scipy.linalg
from jaxtyping import Float

from momentdp._checks import count, finite_array, number
from momentdp.synthesis.problem import (
    P1Solution,
    factor_of,
    lower_from_gram,
    progress,
    rank_warning,
    ridge_of,
)

MIX = 1e-7


def solve_dense(
    Q=None, *, factor=None, regularisation=0.0, tolerance=1e-8, max_iterations=100
) -> P1Solution:
    """Minimise tr(Q X^-1) over positive definite X (T, T) with diag X = 1.

    Dual: maximise 2 tr (V^1/2 Q V^1/2)^1/2 - tr V over V = diag(v) > 0, where
    X(v) = V^-1/2 (V^1/2 Q V^1/2)^1/2 V^-1/2 and the gradient is diag X(v) - 1. The fixed point
    v <- v diag X(v) (Denisov et al., arXiv 2202.08312) needs hundreds of sweeps for momentum
    workloads; Newton steps in log v, solved by conjugate gradients, need 4 to 10.

    Args: ``Q`` (T, T) PSD, or ``factor`` (T, r) with Q = F F'; ``regularisation`` eps adds
    eps tr(Q) / T I; ``tolerance`` is the relative duality gap to stop at.
    A Q of rank below T has no minimiser worth the name: the answer is then within ``MIX`` of the
    infimum, which the bound certifies, is nearly singular, and says so in ``warnings``.
    Raises ValueError for a Q that is not symmetric PSD.
    """
    F = factor_of(Q, factor)
    steps = len(F)
    ridge = ridge_of(F, regularisation)
    tolerance = number("tolerance", tolerance, 0.0)
    max_iterations = count("max_iterations", max_iterations)
    warnings = rank_warning(F) if ridge == 0 else []
    if warnings:
        tolerance = max(tolerance, MIX)
        X, history, converged = _filled(F, tolerance, max_iterations)
    else:
        gram = F @ F.T + ridge * np.eye(steps)
        start = np.sqrt(np.diag(gram))
        _, half, history, converged = _newton(
            lambda v: _eigh_sweep(gram, v), start, tolerance, max_iterations
        )
        X = half @ half.T
        X /= np.sqrt(np.outer(np.diag(X), np.diag(X)))
    C = lower_from_gram(X)
    C /= np.linalg.norm(C, axis=0)
    S = scipy.linalg.solve_triangular(C, np.eye(steps), lower=True)
    objective = float(np.sum((S.T @ F) ** 2) + ridge * np.sum(S**2))
    bound = min(objective, max(dual for _, dual in history))
    if not converged:
        warnings.append(f"stopped at gap {1 - bound / objective:.1e} after {len(history)} sweeps")
    return P1Solution(
        structure="dense",
        factor=C,
        steps=steps,
        objective=objective,
        dual_bound=bound,
        converged=converged,
        iterations=len(history),
        warnings=tuple(warnings),
        lambda_min=float(np.linalg.eigvalsh(X)[0]),
        history=tuple(history),
    )


def nuclear_bound(factor, *, tolerance=1e-6, max_iterations=200) -> tuple[float, float]:
    """(floor, ceiling) around inf tr(F F' X^-1) over all X with diag X = 1 (theory, Optimality).

    ``floor`` = max over v of ||diag(sqrt v) F||_*^2 / sum v holds for every mechanism of
    sensitivity 1 under single participation, whatever v the search ends at; the infimum itself
    lies below ``ceiling``. ``factor`` is (T, r); each sweep is one SVD of that size, and no matrix
    is T x T. Steps (v = 0) and directions of F that matter less than 1e-8 are left out, which can
    only lower the floor.
    """
    F = finite_array("factor", factor, 2)
    if not np.any(F):
        return 0.0, 0.0
    history = _bound_weights(F, tolerance, max_iterations)[1]
    return max(dual for _, dual in history), min(primal for primal, _ in history)


def participation_bound(factor, min_sep: int, participations: int, *, tolerance=1e-6) -> float:
    """The same floor where an example takes part up to ``participations`` times, min_sep apart.

    The squared sensitivity is at least sum X_ii over any admissible set of steps (gradients at
    right angles), so at least sum v_i X_ii for any mixture v >= 0 of such sets: those with
    sum v <= participations and at most 1 in any min_sep steps in a row. Then ||diag(sqrt v) F||_*^2
    is a floor; v is that of single participation, and flatter versions of it, scaled to fit.
    """
    F = finite_array("factor", factor, 2)
    if not np.any(F):
        return 0.0
    weights = _bound_weights(F, tolerance, 200)[0]
    best = 0.0
    for power in (1.0, 0.75, 0.5, 0.25, 0.0):
        v = np.where(weights > 0, weights, 0.0) ** power if power else np.ones(len(F))
        sums = np.concatenate([[0.0], np.cumsum(v)])
        crowded = np.max(sums[min_sep:] - sums[:-min_sep]) if min_sep < len(v) else sums[-1]
        v /= max(crowded, sums[-1] / participations)
        best = max(best, nuclear_value(F, v) * float(v.sum()))
    return best


def _bound_weights(F, tolerance, max_iterations):
    """(v, [(primal, dual)]) of the nuclear bound; steps and directions below 1e-8 left out."""
    sizes = np.linalg.norm(F, axis=1)
    kept = sizes > 1e-8 * sizes.max()
    G = F[kept]
    if G.shape[0] > G.shape[1]:
        vectors, s, _ = np.linalg.svd(G, full_matrices=False)
        G = (vectors * s)[:, s > 1e-8 * s[0]]
    start = np.linalg.norm(G, axis=1)
    v, _, history, _ = _newton(lambda v: _svd_sweep(G, v), start, tolerance, max_iterations)
    weights = np.zeros(len(F))
    weights[kept] = v
    return weights, history


def nuclear_value(F: Float[np.ndarray, "steps rank"], v: Float[np.ndarray, " steps"]) -> float:
    """||diag(sqrt v) F||_*^2 / sum v: a lower bound on tr(F F' X^-1) for any v >= 0."""
    singular_values = np.linalg.svd(np.sqrt(v)[:, None] * F, compute_uv=False)
    return float(singular_values.sum() ** 2 / v.sum())


def _eigh_sweep(Q, v):
    """half with half half' = (V^1/2 Q V^1/2)^1/2, its spectrum, v best scaled, primal, dual."""
    w = np.sqrt(v)
    values, vectors = np.linalg.eigh(w[:, None] * Q * w)
    s = np.sqrt(np.maximum(values, values[-1] * 1e-32))
    inverse_root = (vectors / s) @ vectors.T
    scale = s.sum() / v.sum()
    s, v = s * scale, v * scale**2
    half = vectors * np.sqrt(s)
    # X(v) scaled to a unit diagonal is feasible for any v, so every sweep has both sides.
    w = np.sqrt(np.sum(half**2, axis=1) / scale)
    return half, s, v, float(w @ (Q * inverse_root) @ w), float(s.sum())


def _svd_sweep(F, v):
    """The same for Q = F F' of low rank. X(v) is singular there, but X(v) / max diag X(v), its
    diagonal filled up to one, is feasible and costs no more than max diag X(v) x dual."""
    vectors, s, _ = np.linalg.svd(np.sqrt(v)[:, None] * F, full_matrices=False)
    s = np.maximum(s, s[0] * 1e-16)
    scale = s.sum() / v.sum()
    s, v = s * scale, v * scale**2
    half = vectors * np.sqrt(s)
    filled = np.max(np.sum(half**2, axis=1) / v)
    return half, s, v, float(filled * s.sum()), float(s.sum())


def _filled(F, tolerance, max_iterations):
    """Near-optimal X for Q = F F' of low rank: X(v) with its diagonal filled up to one, mixed
    with a little of the identity so that it can be factored; [(primal, dual)]; converged."""
    active = np.any(F != 0, axis=1)
    G = F[active]
    v, half, history, converged = _newton(
        lambda v: _svd_sweep(G, v), np.linalg.norm(G, axis=1), tolerance, max_iterations
    )
    block = half @ half.T / np.sqrt(np.outer(v, v))
    block /= max(1.0, np.diag(block).max())
    X = np.zeros((len(F), len(F)))
    X[np.ix_(active, active)] = block * (1 - MIX)
    np.fill_diagonal(X, 1.0)
    return X, history, converged


def _newton(sweep, v, tolerance, max_iterations):
    """Best v and half found, [(primal, dual)] a sweep, and whether the gap was reached."""
    history, best = [], (np.inf, v, None)
    try:
        for iteration in range(max_iterations):
            half, s, v, primal, dual = sweep(v)
            history.append((primal, dual))
            if primal < best[0]:
                best = (primal, v, half)
            progress(f"P1: sweep {iteration}, gap {1 - dual / primal:.1e}")
            if primal - dual <= tolerance * primal:
                return best[1], best[2], history, True
            step = _newton_step(half, s, v)
            v = v * np.exp(np.clip(step, -2.0, 2.0))
    except KeyboardInterrupt:
        pass
    return best[1], best[2], history, False


def _newton_step(half, s, v, relative=0.1, most=40):
    """Conjugate gradients for (B + extra) step = m - v, m = v diag X(v), B never formed.

    -(Hessian of the dual in log v) is B + diag(v - m) with B positive semidefinite, singular for
    a Q of low rank; there |m - v| keeps the sum positive and vanishes at the optimum.
    """
    kernel = 1.0 / (s[:, None] + s)
    m = np.sum(half**2, axis=1)
    r = m - v
    extra = np.abs(r) if half.shape[1] < len(v) else 0.0
    scale = m / 2 + extra
    step, z = np.zeros_like(r), r / scale
    p, rho = z, r @ z
    stop = relative**2 * rho
    for _ in range(most):
        Bp = np.einsum("ia,ia->i", half @ ((half.T * p) @ half * kernel), half) + extra * p
        alpha = rho / (p @ Bp)
        step += alpha * p
        r = r - alpha * Bp
        z = r / scale
        rho, old = r @ z, rho
        if rho <= stop:
            break
        p = z + rho / old * p
    return step
