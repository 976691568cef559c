"""Plain, literal twins of the engine's formulas, written from the equations and not from the code.

Everything is dense and in the original coordinates: d x d matrices, G with its d x dT entries,
the Kronecker product. Slow on purpose. Each function names the equation that it spells out.
"""

import jax
import jax.numpy as jnp
import numpy as np


def rotated(eigenvalues, seed=0):
    """A symmetric matrix with these eigenvalues and no structure, and its eigenvectors."""
    d = len(eigenvalues)
    U = np.linalg.qr(np.random.default_rng(seed).normal(size=(d, d)))[0]
    return U @ np.diag(eigenvalues) @ U.T, U


def lower_triangular(steps, seed=0):
    """A well-conditioned strategy without structure."""
    rng = np.random.default_rng(seed)
    return np.tril(rng.normal(size=(steps, steps)) / 4, -1) + np.diag(rng.uniform(0.7, 1.4, steps))


def step_matrices(J, eta, momentum, nesterov=False, dampening=0.0, weight_decay=0.0):
    """A_t (2d, 2d) and B_t (2d, d) of s = [e; v] (eq. 2), by substituting the recurrence.

    g = (J + wd I) e + z;  v+ = mu v + (1 - tau) g;  e+ = e - eta v+, or e - eta (g + mu v+).
    """
    one = np.eye(len(J))
    seen = J + weight_decay * one
    A_v, B_v = np.hstack([(1 - dampening) * seen, momentum * one]), (1 - dampening) * one
    if nesterov:
        along, noise = np.hstack([seen, 0 * one]) + momentum * A_v, one + momentum * B_v
    else:
        along, noise = A_v, B_v
    A_e = np.hstack([one, 0 * one]) - eta * along
    return np.vstack([A_e, A_v]), np.vstack([-eta * noise, B_v])


def transfer_matrices(J, rates, momentum, upto=None, **variant):
    """G_t = P A_{T-1} .. A_{t+1} B_t, (T, d, d) (eq. 3); zeros for t >= ``upto`` if given."""
    d, steps = len(J), len(rates) if upto is None else upto
    pairs = [step_matrices(J, eta, momentum, **variant) for eta in rates[:steps]]
    G = np.zeros((len(rates), d, d))
    for t in range(steps):
        Phi = np.eye(2 * d)
        for A, _ in pairs[t + 1 :]:
            Phi = A @ Phi
        G[t] = (Phi @ pairs[t][1])[:d]
    return G


def literal_damage(H, G, K, sigma=1.0):
    """sigma^2 / 2 tr(H G (K (x) I) G') with G (T, d, d) laid out as d x dT (Proposition 1)."""
    d = G.shape[1]
    wide = np.hstack(list(G))
    return 0.5 * sigma**2 * np.trace(H @ wide @ np.kron(K, np.eye(d)) @ wide.T)


def temporal_covariance(C):
    """K = C^-1 C^-T."""
    inverse = np.linalg.inv(C)
    return inverse @ inverse.T


def propagated_damage(H, J, rates, momentum, sigma=1.0, **variant):
    """Loss after each step for independent noise: S+ = A S A' + sigma^2 B B' of the 2d state."""
    d = len(J)
    S, losses = np.zeros((2 * d, 2 * d)), []
    for eta in rates:
        A, B = step_matrices(J, eta, momentum, **variant)
        S = A @ S @ A.T + sigma**2 * B @ B.T
        losses.append(0.5 * np.trace(H @ S[:d, :d]))
    return np.array(losses)


def final_error_by_scan(H, rates, momentum, e0, Z):
    """e_T of eq. 2 for noise Z (T, d), as a jax scan: what jax.vjp is taken of."""

    def step(state, inputs):
        e, v = state
        eta, z = inputs
        v = H @ e + momentum * v + z
        return (e - eta * v, v), None

    start = (e0, jnp.zeros_like(e0))
    return jax.lax.scan(step, start, (jnp.asarray(rates), Z))[0][0]


def run(J, rates, noise, e0, momentum, nesterov=False, dampening=0.0, pull=0.0, undamped_first=0):
    """e_1..e_T (T, n, d) of torch's SGD recurrence for n noise paths (n, T, d).

    ``pull`` (d,) or (n, d) -> weight decay is passed inside J and pull by the caller.
    ``undamped_first``: torch starts the buffer at the first gradient, without dampening.
    """
    e = np.broadcast_to(e0, (len(noise), len(J))).astype(float)
    v, path = np.zeros_like(e), []
    for t, eta in enumerate(rates):
        g = e @ J.T + noise[:, t] + pull
        damping = 0.0 if undamped_first and t == 0 else dampening
        v = momentum * v + (1 - damping) * g
        e = e - eta * (g + momentum * v if nesterov else v)
        path.append(e)
    return np.array(path)


def heavy_ball_closed_form(eigenvalue, eta, momentum, steps):
    """g_j = -eta (r1^(T-j) - r2^(T-j)) / (r1 - r2), or its limit at a double root."""
    b = 1 + momentum - eta * eigenvalue
    root = np.sqrt(complex(b**2 / 4 - momentum))
    r1, r2 = b / 2 + root, b / 2 - root
    n = steps - np.arange(steps)
    if abs(r1 - r2) < 1e-7:
        return (-eta * n * (b / 2) ** (n - 1)).real
    return (-eta * (r1**n - r2**n) / (r1 - r2)).real


def momentum_workload(rates, momentum):
    """A_{mu,eta}: row t adds up eta_s v_{s+1}, s <= t, with v a geometric sum of the noise."""
    steps = len(rates)
    A = np.zeros((steps, steps))
    for t in range(steps):
        for j in range(t + 1):
            A[t, j] = sum(rates[s] * momentum ** (s - j) for s in range(j, t + 1))
    return A
