"""Mechanism: constructors, samples, the way to jax-privacy and back, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax_privacy import noise_addition
from jax_privacy.matrix_factorization import streaming_matrix, toeplitz
from jax_privacy.matrix_factorization.banded import ColumnNormalizedBanded
from jax_privacy.matrix_factorization.buffered_toeplitz import BufferedToeplitz

from momentdp.mechanisms.mechanism import Mechanism

STEPS = 7
FULL = oracles.lower_triangular(STEPS, seed=4)
UNIT = np.tril(np.triu(FULL, -2))  # three bands, then unit columns
UNIT = UNIT / np.linalg.norm(UNIT, axis=0)


def diagonals_of(C, bands):
    return np.array([np.pad(np.diag(C, -k), (0, k)) for k in range(bands)])


def made(**arguments):
    return Mechanism.from_toeplitz(steps=STEPS, **arguments)


MECHANISMS = {
    "identity": made(strategy_coef=[1.0]),
    "Toeplitz": made(strategy_coef=[1.0, 0.5, 0.375]),
    "unit columns": made(strategy_coef=[1.0, 0.5, 0.375], column_normalize=True),
    "inverse banded": made(noising_coef=[1.0, -0.5, -0.125]),
    "banded": Mechanism.from_banded(2 * diagonals_of(UNIT, 3)),
    "banded, unit columns": Mechanism.from_banded(diagonals_of(UNIT, 3)),
    "dense": Mechanism.from_strategy_matrix(FULL),
}


def materialize(noising):
    """C^-1 as jax-privacy would multiply by it."""
    if isinstance(noising, streaming_matrix.StreamingMatrix):
        return np.asarray(noising.materialize(STEPS))
    return np.asarray(noising)


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("name", MECHANISMS)
def test_to_jax_privacy_is_the_noising_matrix(name, flag):
    m = MECHANISMS[name]
    with jax.enable_x64(flag):
        found = materialize(m.to_jax_privacy())
    np.testing.assert_allclose(found, m.noising_matrix, atol=1e-13 if flag else 1e-6)


@pytest.mark.parametrize("name", ["Toeplitz", "unit columns", "banded, unit columns"])
def test_streams_where_it_can(name):
    assert isinstance(MECHANISMS[name].to_jax_privacy(), streaming_matrix.StreamingMatrix)


def covariance_error(samples, K):
    """Largest deviation of the empirical covariance of (n, T) samples in standard errors."""
    n = len(samples)
    empirical = samples.T @ samples / n
    spread = np.sqrt((np.outer(np.diag(K), np.diag(K)) + K**2) / n)
    return np.abs((empirical - K) / spread).max()


@pytest.mark.parametrize("name", ["Toeplitz", "unit columns", "banded, unit columns", "dense"])
def test_privatizer_injects_covariance_K(name):
    """What jax-privacy's privatizer really adds has covariance C^-1 C^-T (its docstring: S' S)."""
    m, n = MECHANISMS[name], 20_000
    privatizer = noise_addition.matrix_factorization_privatizer(
        m.to_jax_privacy(), stddev=1.0, prng_key=jax.random.key(5)
    )
    zeros = jnp.zeros(n)
    state = privatizer.init(zeros)
    update = jax.jit(privatizer.update)
    noise = []
    for _ in range(STEPS):
        added, state = update(zeros, state)
        noise.append(np.asarray(added, dtype=np.float64))
    samples = np.array(noise).T
    K = oracles.temporal_covariance(m.strategy_matrix)
    assert covariance_error(samples, K) < 4.5
    S = m.noising_matrix
    assert covariance_error(samples, S.T @ S) > 20  # the docstring's order is far off


@pytest.mark.parametrize("name", MECHANISMS)
def test_sample_has_covariance_K(name):
    m = MECHANISMS[name]
    samples = m.sample(jax.random.key(1), (100, 300)).reshape(STEPS, -1).T
    assert covariance_error(samples, oracles.temporal_covariance(m.strategy_matrix)) < 4.5
    assert abs(samples.mean()) < 0.05


def test_sample_shapes_keys_and_flag():
    m = MECHANISMS["Toeplitz"]
    key = jax.random.key(3)
    assert m.sample(key).shape == (STEPS,) and m.sample(key, (2, 3)).shape == (STEPS, 2, 3)
    with jax.enable_x64(True):
        again = m.sample(key, (4,))
    np.testing.assert_array_equal(m.sample(key, (4,)), again)
    assert again.dtype == np.float64
    assert not np.array_equal(m.sample(jax.random.key(4), (4,)), again)


def test_same_key_same_white_noise():
    """C z = w for every mechanism: paired comparisons start from one w."""
    key = jax.random.key(9)
    white = [m.strategy_matrix @ m.sample(key, (5,)) for m in MECHANISMS.values()]
    for w in white[1:]:
        np.testing.assert_allclose(w, white[0], atol=1e-12)


def test_from_jax_privacy_toeplitz():
    with jax.enable_x64(True):
        coef = toeplitz.optimal_max_error_strategy_coefs(4)
        expected = np.asarray(toeplitz.materialize_lower_triangular(coef, STEPS))
        m = Mechanism.from_jax_privacy(coef, STEPS)
    np.testing.assert_allclose(m.strategy_matrix, expected, rtol=1e-14)
    assert m.buffers == 3


def test_from_jax_privacy_matrix():
    m = Mechanism.from_jax_privacy(jnp.asarray(np.float32(FULL)), STEPS)
    np.testing.assert_array_equal(m.strategy_matrix, np.float64(np.float32(FULL)))


@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_from_jax_privacy_banded(scale):
    """ColumnNormalizedBanded is what it materializes, whatever the column norms of its params."""
    with jax.enable_x64(True):
        params = jnp.asarray(scale * diagonals_of(FULL, 3).T)
        obj = ColumnNormalizedBanded(params=params)
        expected = np.asarray(obj.materialize())
        m = Mechanism.from_jax_privacy(obj, STEPS)
    np.testing.assert_allclose(m.strategy_matrix, expected, rtol=1e-13)
    assert m.sensitivity() == pytest.approx(1.0, rel=1e-14) and m.buffers == 2


def test_from_jax_privacy_banded_ignores_params_past_the_edge():
    with jax.enable_x64(True):
        obj = ColumnNormalizedBanded(params=jnp.ones((STEPS, 3)))
        expected = np.asarray(obj.materialize())
        m = Mechanism.from_jax_privacy(obj, STEPS)
    np.testing.assert_allclose(m.strategy_matrix, expected, rtol=1e-13)


def test_from_jax_privacy_buffered_toeplitz():
    with jax.enable_x64(True):
        blt = BufferedToeplitz.build(buf_decay=[0.9, 0.4], output_scale=[0.3, 0.2])
        coef = np.asarray(blt.toeplitz_coefs(STEPS))
    m = Mechanism.from_jax_privacy(blt, STEPS)
    expected = [1.0] + [0.3 * 0.9**k + 0.2 * 0.4**k for k in range(STEPS - 1)]
    np.testing.assert_allclose(coef, expected, rtol=1e-12)
    np.testing.assert_allclose(m.strategy_matrix[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_round_trip_through_jax_privacy(name):
    """to_jax_privacy gives C^-1; a StreamingMatrix comes back as such, a matrix as a matrix."""
    m = MECHANISMS[name]
    with jax.enable_x64(True):
        noising = m.to_jax_privacy()
        if isinstance(noising, streaming_matrix.StreamingMatrix):
            back = Mechanism.from_jax_privacy(noising, STEPS)
        else:
            back = Mechanism.from_noising_matrix(noising)
    np.testing.assert_allclose(back.strategy_matrix, m.strategy_matrix, atol=1e-12)


def test_from_jax_privacy_checks_the_horizon():
    with pytest.raises(ValueError, match=r"horizon 7; build it for steps = 9"):
        Mechanism.from_jax_privacy(FULL, 9)
    banded = ColumnNormalizedBanded(params=jnp.ones((STEPS, 2)))
    with pytest.raises(ValueError, match=r"horizon 7; build it for steps = 9"):
        Mechanism.from_jax_privacy(banded, 9)


def test_names():
    m = made(strategy_coef=[1.0], name="iid")
    assert m.name == "iid" and m.renamed("white").name == "white" and m.name == "iid"
    assert m.normalized().name == "iid"
    with pytest.raises(ValueError, match=r"mechanism 'iid': got horizon 7; build it for steps = 8"):
        m.require_steps(8)


def above(value):
    matrix = FULL.copy()
    matrix[1, 4] = value
    return matrix


def singular():
    matrix = FULL.copy()
    matrix[3, 3] = 0.0
    return matrix


BAD = [
    (lambda: Mechanism.from_strategy_matrix(above(1e-9)), r"strategy_matrix: got an entry 1e-09 "),
    (lambda: Mechanism.from_strategy_matrix(singular()), r"strategy_matrix: got a zero at \(3, 3"),
    (lambda: Mechanism.from_strategy_matrix(above(np.nan)), r"strategy_matrix: got nan at index"),
    (lambda: Mechanism.from_strategy_matrix(above(np.inf)), r"strategy_matrix: got inf at index"),
    (
        lambda: Mechanism.from_strategy_matrix(FULL[:5]),
        r"strategy_matrix: got shape \(5, 7\); pass",
    ),
    (lambda: Mechanism.from_strategy_matrix(FULL[0]), r"strategy_matrix: got shape \(7,\); pass"),
    (lambda: Mechanism.from_strategy_matrix("C.npy"), r"strategy_matrix: got str; pass"),
    (lambda: Mechanism.from_strategy_matrix(FULL * 1j), r"strategy_matrix: got complex"),
    (lambda: Mechanism.from_noising_matrix(above(2.0)), r"noising_matrix: got an entry 2 above"),
    (lambda: Mechanism.from_noising_matrix(singular()), r"noising_matrix: got a zero at \(3, 3\)"),
    (lambda: made(), r"strategy_coef, noising_coef: got none or both; pass exactly one"),
    (lambda: made(strategy_coef=[1.0], noising_coef=[1.0]), r"strategy_coef, noising_coef: got"),
    (lambda: made(strategy_coef=[0.0, 1.0]), r"strategy_coef: got a leading 0; pass"),
    (lambda: made(noising_coef=[0.0, 1.0]), r"noising_coef: got a leading 0; pass"),
    (lambda: made(strategy_coef=np.ones(8)), r"strategy_coef: got 8 entries; pass at most steps"),
    (lambda: made(strategy_coef=[1.0, np.nan]), r"strategy_coef: got nan at index \(1,\); pass"),
    (lambda: made(noising_coef=[[1.0]]), r"noising_coef: got shape \(1, 1\); pass"),
    (lambda: Mechanism.from_toeplitz(steps=0, strategy_coef=[1.0]), r"steps: got 0; pass"),
    (lambda: Mechanism.from_banded(np.ones((8, 7))), r"diagonals: got shape \(8, 7\); pass"),
    (lambda: Mechanism.from_banded(np.zeros((2, 7))), r"diagonals: got a zero on the main"),
    (lambda: Mechanism.from_banded(np.full((2, 7), np.nan)), r"diagonals: got nan at index"),
    (lambda: Mechanism.from_jax_privacy(np.array([1.0, np.inf]), 4), r"strategy_coef: got inf"),
    (lambda: MECHANISMS["dense"].sensitivity(None, 2), r"min_sep: got None; "),
    (lambda: MECHANISMS["dense"].sensitivity(0, 2), r"min_sep: got 0; pass a whole"),
    (lambda: MECHANISMS["Toeplitz"].sensitivity(2, 0), r"max_participations: got 0; pass a whole"),
    (lambda: MECHANISMS["unit columns"].sensitivity(2, 0), r"max_participations: got 0; pass"),
    (lambda: MECHANISMS["unit columns"].sensitivity(-1, 1), r"min_sep: got -1; pass"),
]


@pytest.mark.parametrize(("build", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input(build, message):
    with pytest.raises(ValueError, match="^" + message):
        build()
