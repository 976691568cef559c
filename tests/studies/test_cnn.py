import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from momentdp.studies import cnn, cnn_live
from momentdp.studies.images import digits_images, shard_examples
from momentdp.studies.network import Network, lax_convolution, patches_convolution

TINY = Network((4, 6))


@pytest.fixture(scope="module")
def digits():
    images = digits_images()
    return images.pixels, images.labels.astype(np.int32)


def _vmapped_gradients(network, parameters, pixels, labels):
    """Per-example gradients by plain jax.vmap: no clipping library involved."""
    one = jax.grad(lambda p, x, y: network.losses(p, x[None], y[None])[0])
    return np.asarray(jax.vmap(one, (None, 0, 0))(parameters, pixels, labels), np.float64)


def _distance(a, b):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(np.asarray(b))


def test_paper_count_of_parameters_and_he_normal_start():
    network = Network()
    start = network.init(jax.random.key(0))
    assert start.shape == (140_714,)  # Appendix G.1
    assert start.dtype == jnp.float32
    for weight, bias in network.layers(start):
        assert not bias.any()
        fan_in = np.prod(weight.shape[:-1])
        assert np.std(weight) == pytest.approx(np.sqrt(2 / fan_in), rel=0.1)
        assert np.abs(weight).max() > 2.5 * np.std(weight)  # normal, not truncated at two


def test_both_convolutions_agree_in_value_and_gradient(digits):
    pixels, labels = digits[0][:3], digits[1][:3]
    results = []
    for convolution in (patches_convolution, lax_convolution):
        network = Network((32, 32, 64, 64, 128), convolution, None)
        start = network.init(jax.random.key(1))
        loss = jax.jit(jax.value_and_grad(lambda p, n=network: n.losses(p, pixels, labels).mean()))
        results.append(loss(start))
    assert float(results[0][0]) == pytest.approx(float(results[1][0]), rel=1e-5)
    assert _distance(results[0][1], results[1][1]) < 1e-5


@pytest.mark.parametrize("microbatch", [1, None])
def test_clipped_mean_equals_the_vmap_reference(digits, microbatch):
    pixels, labels = digits[0][:12], digits[1][:12]
    start = TINY.init(jax.random.key(0))
    each = _vmapped_gradients(TINY, start, pixels, labels)
    norms = np.linalg.norm(each, axis=1)
    clip = float(np.median(norms))
    expected = (each * np.minimum(1, clip / norms)[:, None]).mean(axis=0)
    network = Network(TINY.channels, microbatch=microbatch)
    mean, losses, reported = cnn.clipped_gradient(network, start, pixels, labels, clip)
    assert _distance(mean, expected) < 1e-5
    np.testing.assert_allclose(reported, norms, rtol=1e-4)
    np.testing.assert_allclose(losses, TINY.losses(start, pixels, labels), rtol=1e-5)


def test_one_example_moves_the_mean_by_at_most_clip_over_batch(digits):
    pixels, labels = digits[0][:12], digits[1][:12]
    start = TINY.init(jax.random.key(0))
    clip = 0.01  # below every norm: the bound is then attained
    whole, _, norms = cnn.clipped_gradient(TINY, start, pixels, labels, clip)
    rest, _, _ = cnn.clipped_gradient(TINY, start, pixels[1:], labels[1:], clip)
    assert norms.min() > clip
    assert np.linalg.norm(whole - rest * 11 / 12) == pytest.approx(clip / 12, rel=1e-4)


def test_noise_has_the_covariance_of_the_noising_matrix_and_common_random_numbers():
    noising = np.tril(np.random.default_rng(0).normal(size=(5, 5)))
    noise = cnn.correlated_noise(noising, 40_000, stddev=0.3, noise_seed=7)
    covariance = noise @ noise.T / 40_000
    expected = 0.09 * noising @ noising.T
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((covariance - expected) / scale).max() < 0.03  # six standard errors
    white = cnn.correlated_noise(np.eye(5), 40_000, stddev=0.3, noise_seed=7)
    np.testing.assert_allclose(noise, noising @ white, atol=1e-5)
    assert not np.array_equal(
        white, cnn.correlated_noise(np.eye(5), 40_000, stddev=0.3, noise_seed=8)
    )
    assert not cnn.correlated_noise(np.zeros((5, 5)), 10, stddev=0.3, noise_seed=7).any()


def test_training_is_optax_sgd_on_the_noisy_clipped_gradients(digits):
    images = digits_images()
    start = TINY.init(jax.random.key(2))
    shards = shard_examples(np.arange(60), steps=4, batch_size=12, order_seed=0)
    noise = cnn.correlated_noise(np.eye(4), len(start), stddev=0.01, noise_seed=0)
    rates, clip = np.array([0.05, 0.04, 0.02, 0.01]), 2.0
    run = cnn.train(
        TINY, start, images, shards, noise, learning_rates=rates, momentum=0.9, clip_norm=clip,
        checkpoints=(2, 4), visit=lambda step, p: float(p.sum()),
    )  # fmt: skip
    optimizer = optax.sgd(lambda step: jnp.asarray(rates)[step], momentum=0.9)
    parameters, state = start, optimizer.init(start)
    for step, shard in enumerate(shards):
        each = _vmapped_gradients(TINY, parameters, images.pixels[shard], digits[1][shard])
        norms = np.linalg.norm(each, axis=1)
        assert run.clipped[step] == pytest.approx(np.mean(norms > clip))
        mean = (each * np.minimum(1, clip / norms)[:, None]).mean(axis=0)
        updates, state = optimizer.update(jnp.asarray(mean + noise[step], jnp.float32), state)
        parameters = optax.apply_updates(parameters, updates)
    assert _distance(run.parameters - start, parameters - start) < 1e-4
    assert run.visited[-1] == pytest.approx(float(run.parameters.sum()))
    assert len(run.visited) == 2
    with pytest.raises(ValueError, match="learning_rates: got a loss of nan at step"):
        cnn.train(
            TINY, start, images, shards, noise * np.float32(np.inf), learning_rates=rates,
            momentum=0.9, clip_norm=clip,
        )  # fmt: skip


def test_calibration_against_the_dense_hessian(digits):
    pixels, labels = digits[0][:10, ::4, ::4], digits[1][:10]  # 8 x 8, as shipped
    small = Network((2, 3))
    start = small.init(jax.random.key(3))
    hessian = jax.jit(jax.hessian(lambda p: small.losses(p, pixels, labels).mean()))
    dense = np.asarray(hessian(start), np.float64)
    known = cnn.calibrate(
        small, start, pixels, labels, clip_examples=6, num_eigenvalues=12, num_probes=40
    )
    eigenvalues = np.linalg.eigvalsh(dense)
    assert known.spectrum.largest == pytest.approx(eigenvalues[-1], rel=1e-3)
    norms = np.linalg.norm(_vmapped_gradients(small, start, pixels[:6], labels[:6]), axis=1)
    assert known.clip_norm == pytest.approx(np.median(norms), rel=1e-4)
    product = cnn.hessian_vector_product(small, start, pixels, labels)
    vectors = np.random.default_rng(0).normal(size=(2, len(start))).astype(np.float32)
    np.testing.assert_allclose(jax.vmap(product)(vectors), vectors @ dense, rtol=1e-3, atol=1e-4)


def test_evaluation_by_hand(digits):
    pixels, labels = digits[0][:50], digits[1][:50]
    start = TINY.init(jax.random.key(0))
    accuracy, loss = cnn.evaluate(TINY, start, pixels, labels)
    scores = np.asarray(TINY.logits(start, pixels), np.float64)
    logarithms = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    assert float(accuracy) == pytest.approx(np.mean(scores.argmax(1) == labels))
    assert float(loss) == pytest.approx(-logarithms[np.arange(50), labels].mean(), rel=1e-5)


def test_sources_with_equal_seeds_are_unrelated():
    draws = [jax.random.normal(cnn.source_key(name, 0), (2000,)) for name in cnn.SOURCES]
    assert np.abs(np.corrcoef(draws) - np.eye(3)).max() < 0.1


def test_live_run_repeats_and_noise_has_its_own_seed(monkeypatch):
    monkeypatch.setattr(
        cnn_live, "Network", type("T", (), {"for_device": staticmethod(lambda: TINY)})
    )
    run = cnn_live.live_runs({"iid": np.eye(3)}, noise_multiplier=1.0)["iid"]
    again = cnn_live.live_runs({"iid": np.eye(3)}, noise_multiplier=1.0, noise_seed=1)["iid"]
    for name in ("clip_norm", "largest_eigenvalue", "learning_rate", "source"):
        assert getattr(run, name) == getattr(again, name)  # the same start, to the bit
    assert again.losses[0] == run.losses[0]  # common start, order and data
    assert again.losses[2] != run.losses[2]
    assert run.learning_rate * run.largest_eigenvalue == pytest.approx(0.3)
    assert 0 < run.clipped[0] < 1
    with pytest.raises(ValueError, match="noising_matrices: got sizes"):
        cnn_live.live_runs({"odd": np.ones((3, 2))}, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="count: got 1797 examples"):
        cnn_live.live_runs({"iid": np.eye(100)}, noise_multiplier=1.0)
