"""Problems shared by the solver tests."""

import numpy as np
import pytest


@pytest.fixture(scope="session")
def final_loss():
    """(steps, condition_number, el, momentum) -> F (steps, 16) with Q = F F' of the final loss.

    Written out as products of the step matrices of theory.md, not by the package's adjoint sweep.
    """

    def factor(steps, condition_number, el, momentum):
        eigenvalues = np.logspace(-np.log10(condition_number), 0, 16)
        columns = []
        for value in eigenvalues:
            A = np.array([[1 - el * value, -el * momentum], [value, momentum]])
            row, g = np.array([1.0, 0.0]), np.zeros(steps)
            for t in range(steps - 1, -1, -1):
                g[t] = row @ [-el, 1.0]
                row = row @ A
            columns.append(np.sqrt(value) * g)
        return np.array(columns).T

    return factor


@pytest.fixture(scope="session")
def feasible():
    """(generator, steps, bands) -> a random banded positive definite X of unit diagonal."""

    def draw(rng, steps, bands):
        C = np.tril(rng.standard_normal((steps, steps)) * rng.uniform(0.1, 2))
        C += np.diag(1 + np.abs(rng.standard_normal(steps)))
        C[np.subtract.outer(np.arange(steps), np.arange(steps)) >= bands] = 0
        C /= np.linalg.norm(C, axis=0)
        return C.T @ C

    return draw
