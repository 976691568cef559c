"""The paper's equations word for word: full matrices, plain loops, slow. For checking only.

Nothing here uses the rest of the package, the eigenbasis included: H is any symmetric matrix.
``final_error`` is plain arithmetic, so it also runs on jax arrays and on many samples at once.
"""

import numpy as np
from jaxtyping import Float


def final_error(H, momentum, learning_rates, noise):
    """e_T by eq. 2 from e_0 = v_0 = 0, for noise (steps, d) or (steps, d, samples)."""
    error, velocity = 0 * noise[0], 0 * noise[0]
    for rate, z in zip(learning_rates, noise, strict=True):
        velocity = H @ error + momentum * velocity + z
        error = error - rate * velocity
    return error


def step_matrices(
    H: Float[np.ndarray, "d d"], momentum: float, rate: float
) -> tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n d"]]:
    """A_t and B_t of the stacked state s = [e; v], n = 2 d (paper 2.1)."""
    eye = np.eye(len(H))
    A = np.block([[eye - rate * H, -rate * momentum * eye], [H, momentum * eye]])
    B = np.vstack([-rate * eye, eye])
    return A, B


def transfer_operator(
    H: Float[np.ndarray, "d d"], momentum: float, learning_rates: Float[np.ndarray, " steps"]
) -> Float[np.ndarray, "d columns"]:
    """G = [G_0 .. G_{T-1}], G_t = P A_{T-1} .. A_{t+1} B_t with P = [I 0]; columns = d T."""
    after = np.eye(len(H), 2 * len(H))  # P, then P A_{T-1}, P A_{T-1} A_{T-2}, ...
    blocks = []
    for rate in learning_rates[::-1]:
        A, B = step_matrices(H, momentum, rate)
        blocks.append(after @ B)
        after = after @ A
    return np.hstack(blocks[::-1])


def damage(
    H: Float[np.ndarray, "d d"],
    momentum: float,
    learning_rates: Float[np.ndarray, " steps"],
    covariance: Float[np.ndarray, "steps steps"],
    noise_multiplier: float = 1.0,
) -> float:
    """(sigma^2 / 2) tr(H G (K kron I_d) G'), eq. 3 as it stands."""
    G = transfer_operator(H, momentum, learning_rates)
    spread = G @ np.kron(covariance, np.eye(len(H))) @ G.T
    return 0.5 * noise_multiplier**2 * float(np.trace(H @ spread))


def rotated(eigenvalues: Float[np.ndarray, " d"], seed: int) -> Float[np.ndarray, "d d"]:
    """A full symmetric H with these eigenvalues, in a random orthonormal basis."""
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(eigenvalues),) * 2))
    return (basis * eigenvalues) @ basis.T
