"""Spectra against their definitions; bad input refused."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from momentdp.damage import damage
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.mechanisms.mechanism import Mechanism


def test_log_spaced_is_logspace():
    found = spectra.log_spaced(16, 1000.0, largest=2.5)
    np.testing.assert_allclose(found.eigenvalues, 2.5 * np.logspace(-3, 0, 16), rtol=1e-14)
    np.testing.assert_array_equal(found.multiplicities, np.ones(16))
    assert spectra.log_spaced(1, 10.0).eigenvalues == [1.0]


def test_isotropic_and_spike_use_multiplicities():
    isotropic = spectra.isotropic(7, 2.0)
    assert isotropic.eigenvalues == [2.0] and isotropic.multiplicities == [7.0]
    spike = spectra.spike(10, spikes=2, bulk=0.05, largest=4.0)
    np.testing.assert_allclose(spike.eigenvalues, [0.2, 4.0])
    np.testing.assert_array_equal(spike.multiplicities, [8.0, 2.0])


def test_power_law():
    found = np.sort(spectra.power_law(4, 2.0, 3.0).eigenvalues)
    np.testing.assert_allclose(found, [3 / 16, 3 / 9, 3 / 4, 3.0], rtol=1e-14)


def test_scaled_and_largest():
    found = spectra.spike(10, bulk=0.05, largest=4.0).scaled(0.5)
    assert found.largest == 2.0
    np.testing.assert_array_equal(found.multiplicities, [9.0, 1.0])


def test_from_matrix_in_rotated_coordinates():
    H, _ = oracles.rotated([0.0, 0.3, 1.0, 5.0])
    np.testing.assert_allclose(spectra.from_matrix(H).eigenvalues, [0, 0.3, 1, 5], atol=1e-14)
    assert spectra.from_matrix(H).eigenvalues[0] == 0.0  # rounding does not make it negative


def test_from_matrix_indefinite():
    H, _ = oracles.rotated([-0.5, 0.3, 1.0])
    with pytest.raises(ValueError, match=r'eigenvalues: got -0\.5; .*negative="clip"'):
        spectra.from_matrix(H)
    clipped = spectra.from_matrix(H, negative="clip")
    np.testing.assert_allclose(clipped.eigenvalues, [0, 0.3, 1.0], atol=1e-14)


def test_from_hvp_recovers_top_and_trace():
    """Three outliers over a flat bulk: four Lanczos steps span them, the trace gives the rest."""
    values = np.r_[np.full(37, 0.02), 1.0, 3.0, 7.0]
    H, _ = oracles.rotated(values, seed=5)
    matrix = jnp.asarray(H)  # float32, as a network's
    found = spectra.from_hvp(lambda v: matrix @ v, 40, 4, 200, jax.random.key(0))
    assert found.eigenvalues.dtype == np.float64
    np.testing.assert_allclose(np.sort(found.eigenvalues)[-3:], [1, 3, 7], rtol=1e-4)
    assert found.multiplicities.sum() == 40 and found.multiplicities.max() == 36
    trace = found.eigenvalues @ found.multiplicities
    assert abs(trace - values.sum()) < 0.15 * values.sum()  # Hutchinson: 200 probes


def test_from_hvp_trace_is_exact_for_a_diagonal():
    values = np.r_[np.full(20, 0.1), 2.0, 4.0]
    with jax.enable_x64(True):
        diagonal = jnp.asarray(values)
        found = spectra.from_hvp(lambda v: diagonal * v, 22, 3, 1, jax.random.key(1))
    np.testing.assert_allclose(found.eigenvalues @ found.multiplicities, values.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.eigenvalues[0], 0.1, rtol=1e-8)


def test_quadrature_is_exact_for_a_diagonal():
    """Signs give tr f(H) exactly there, and as many steps as eigenvalues span all of them."""
    values = np.r_[-1.5, np.linspace(0.1, 2.0, 9), 4.0]
    with jax.enable_x64(True):
        diagonal = jnp.asarray(values)
        nodes, weights = spectra.quadrature(lambda v: diagonal * v, 11, 11, 3, jax.random.key(2))
    assert nodes.shape == weights.shape == (3, 11)
    np.testing.assert_allclose(np.sort(nodes), np.tile(values, (3, 1)), rtol=1e-9)
    np.testing.assert_allclose(weights, 1 / 3, rtol=1e-6)


def test_from_quadrature_gives_the_damage_where_a_bulk_does_not():
    """Curvature of all sizes: the same number of products, against every eigenvalue."""
    values = spectra.power_law(400, 1.2, 8.0).eigenvalues
    home = Momentum(0.9), schedules.constant(60, 0.01)
    mechanism = Mechanism.from_noising_matrix(np.eye(60))

    def loss(spectrum):
        return damage(mechanism, home[0], spectrum, home[1])

    matrix, key = jnp.asarray(oracles.rotated(values)[0]), jax.random.key(0)
    spread = spectra.from_quadrature(lambda v: matrix @ v, 400, 8, 2, key, "clip")
    bulk = spectra.from_hvp(lambda v: matrix @ v, 400, 8, 8, key, "clip")
    exact = loss(Spectrum(values))
    assert spread.multiplicities.sum() == pytest.approx(400)
    assert loss(spread) == pytest.approx(exact, rel=0.1)
    assert loss(bulk) > 1.2 * exact


def test_from_quadrature_and_negative_curvature():
    diagonal = np.array([1.0, 0.5, 0.2, -1e-4, -0.6])
    how = 5, 5, 1, jax.random.key(0)
    with pytest.raises(ValueError, match=r"^eigenvalues: got -0\.6"):
        spectra.from_quadrature(lambda v: diagonal * v, *how)
    rounding = np.array([1.0, 0.5, 0.2, -1e-4, 0.6])  # counts as zero and is not refused
    assert spectra.from_quadrature(lambda v: rounding * v, *how).eigenvalues.min() == 0.0
    found = spectra.from_quadrature(lambda v: diagonal * v, *how, "clip")
    np.testing.assert_allclose(np.sort(found.eigenvalues), [0, 0, 0.2, 0.5, 1], atol=1e-5)


def test_arrays_are_frozen_and_owned():
    given = np.array([1.0, 2.0])
    spectrum = Spectrum(given)
    given[0] = 5.0
    assert spectrum.eigenvalues[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        spectrum.eigenvalues[0] = 3.0


BAD = [
    (lambda: Spectrum([1.0, -1e-9]), r'eigenvalues: got -1e-09; .*negative="clip"'),
    (lambda: Spectrum([1.0, np.nan]), r"eigenvalues: got nan at index \(1,\); pass finite"),
    (lambda: Spectrum([np.nan], negative="clip"), r"eigenvalues: got nan at index"),
    (lambda: Spectrum([np.inf]), r"eigenvalues: got inf at index \(0,\); pass finite"),
    (lambda: Spectrum([]), r"eigenvalues: got shape \(0,\); pass"),
    (lambda: Spectrum(np.eye(2)), r"eigenvalues: got shape \(2, 2\); pass"),
    (lambda: Spectrum([1 + 2j]), r"eigenvalues: got .*; pass"),
    (lambda: Spectrum(np.array([1 + 2j, 1.0])), r"eigenvalues: got .*; pass"),
    (lambda: Spectrum([1.0], [1.0, 2.0]), r"multiplicities: got shape \(2,\).*; pass 1 positive"),
    (lambda: Spectrum([1.0], [0.0]), r"multiplicities: got .*smallest 0; pass 1 positive"),
    (lambda: Spectrum([1.0], [np.nan]), r"multiplicities: got nan"),
    (lambda: Spectrum([1.0], negative="ignore"), r"negative: got 'ignore'; pass"),
    (lambda: spectra.log_spaced(0, 10.0), r"d: got 0; pass a whole number"),
    (lambda: spectra.log_spaced(-3, 10.0), r"d: got -3; pass a whole number"),
    (lambda: spectra.log_spaced(4, 0.5), r"condition_number: got 0\.5; pass"),
    (lambda: spectra.isotropic(-1), r"d: got -1; pass a whole number"),
    (lambda: spectra.spike(4, spikes=4), r"spikes: got 4; pass fewer than d = 4"),
    (lambda: spectra.power_law(4, -1.0), r"exponent: got -1\.0; pass"),
    (lambda: spectra.from_matrix(np.ones((2, 3))), r"H: got shape \(2, 3\); pass a square"),
    (lambda: spectra.from_matrix([[1.0, 2.0], [0.0, 1.0]]), r"H: got asymmetric by 2; pass"),
    (lambda: spectra.from_matrix([[np.nan]]), r"H: got nan"),
    (
        lambda: spectra.from_hvp(lambda v: v, 4, 4, 1, jax.random.key(0)),
        r"num_eigenvalues: got 4; pass fewer than dim = 4",
    ),
    (
        lambda: spectra.from_quadrature(lambda v: v, 4, 5, 1, jax.random.key(0)),
        r"num_steps: got 5; pass at most dim = 4",
    ),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=[message[:24] for _, message in BAD])
def test_bad_input(build, message):
    with pytest.raises(ValueError, match="^" + message):
        build()


def test_from_hvp_counts_rounding_below_zero_as_zero():
    diagonal = np.array([1.0, 0.5, 0.2, -1e-4, 0.0, 0.0, 0.0, 0.0])
    found = spectra.from_hvp(lambda v: diagonal * v, 8, 5, 1, jax.random.key(0))
    values = np.sort(found.eigenvalues)
    np.testing.assert_allclose(values[-3:], [0.2, 0.5, 1.0], rtol=1e-4)
    assert (np.abs(values[:-3]) < 1e-4).all() and (values >= 0).all()
    assert (values[:-3] == 0).any()
    with pytest.raises(ValueError, match="negative"):
        spectra.from_hvp(lambda v: 20 * diagonal * v - v, 8, 5, 1, jax.random.key(0))
