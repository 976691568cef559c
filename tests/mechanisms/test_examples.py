"""Mechanisms from a few coefficients, against their squares and other people's optima."""

import numpy as np
import pytest

from momentdp.mechanisms import examples
from momentdp.mechanisms.catalogue import catalogue


def shape(m):
    """First column of C^-1, its first entry 1."""
    return m.noising_matrix[:, 0] / m.noising_matrix[0, 0]


def test_damped_root_squares_to_its_polynomial():
    coef = shape(examples.nu_ftrl(40, 40, 0.3))
    np.testing.assert_allclose(np.convolve(coef, coef)[:40], [1, -0.7] + 38 * [0], atol=1e-14)
    np.testing.assert_allclose(
        shape(examples.nu_ftrl(128, 16, 0.0)), shape(catalogue(128, pool=["bisr"])["bisr"])
    )


@pytest.mark.parametrize("momentum, step", [(0.9, 0.04), (0.9, 0.001), (0.0, 0.3), (0.5, 2.9)])
def test_mode_root_inverts_the_workload_of_its_mode(momentum, step):
    """The impulse response comes from running the optimizer on one mode."""
    steps = 24
    m = examples.mode_bisr(steps, steps, momentum, step)
    theta, velocity, response = 0.0, 0.0, []
    for t in range(steps):
        velocity = momentum * velocity + step * theta + (t == 0)
        theta -= velocity
        response.append(-theta)
    coef = shape(m)
    twice = np.convolve(np.convolve(coef, coef)[:steps], response)[:steps]
    np.testing.assert_allclose(twice, np.eye(1, steps)[0], atol=1e-11)
    assert m.sensitivity() == pytest.approx(1.0, rel=1e-12)


def test_a_few_coefficients_are_the_first_ones():
    whole, cut = examples.mode_bisr(40, 40, 0.9, 0.1), examples.mode_bisr(40, 16, 0.9, 0.1)
    np.testing.assert_allclose(shape(cut), np.where(np.arange(40) < 16, shape(whole), 0))
    momentum_bisr = catalogue(40, momentum=0.9, pool=["momentum_bisr"])["momentum_bisr"]
    flat = examples.mode_bisr(40, 16, 0.9, 0.0)  # no curvature: the catalogue's momentum workload
    np.testing.assert_allclose(shape(flat), shape(momentum_bisr), atol=1e-12)


def largest_prefix_error(strategy_column):
    """Squared, at sensitivity 1, by explicit matrices."""
    steps = len(strategy_column)
    C = sum(np.diag(np.full(steps - k, c), -k) for k, c in enumerate(strategy_column))
    B = np.tril(np.ones((steps, steps))) @ np.linalg.inv(C)
    return (B**2).sum(axis=1).max() * np.sum(np.square(strategy_column))


def test_buffered_toeplitz_is_the_optimum_of_two_buffers():
    column = examples.blt().strategy_matrix[:, 0]
    k = np.arange(127)[:, None]  # the class's own formula: c_t = sum_i s_i d_i^(t - 1)
    decay, scale = np.array(examples.BLT_128["buf_decay"]), examples.BLT_128["output_scale"]
    by_hand = np.append(1, (decay**k * scale).sum(axis=1))
    np.testing.assert_allclose(column / column[0], by_hand, rtol=1e-12)
    error = largest_prefix_error(by_hand)
    assert 6.813 < error < 1.03 * 6.813  # the best Toeplitz strategy of all has 6.813
    for direction in np.vstack([np.eye(4), -np.eye(4)]):
        moved = np.array([*decay, *scale]) + 3e-3 * direction * [0.1, 1, 1, 1]
        nearby = np.append(1, (moved[:2] ** k * moved[2:]).sum(axis=1))
        assert largest_prefix_error(nearby) > error


def test_refusals():
    with pytest.raises(ValueError, match="nu: got 1.5"):
        examples.nu_ftrl(8, 4, 1.5)
    with pytest.raises(ValueError, match="step: got 4"):
        examples.mode_bisr(8, 4, 0.9, 4.0)
    with pytest.raises(ValueError, match="momentum"):
        examples.mode_bisr(8, 4, -0.1, 0.1)
