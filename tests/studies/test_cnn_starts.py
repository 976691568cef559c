"""Other starts of the CNN study: the network by hand, curvature against ARPACK."""

import dataclasses

import cnn_tiny
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse.linalg

from momentdp.studies import cnn_starts
from momentdp.studies.cnn import source_key
from momentdp.studies.images import digits_images
from momentdp.studies.network import Network


def by_hand(weights, pixels, zero, unit):
    """Two convolutions, a pool after the second, the mean and the dense layer, by jax.lax."""
    (first, a), (second, b), (dense, c) = weights
    hidden = (pixels.astype(np.float32) - zero) / unit
    for kernel, offset in ((first, a), (second, b)):
        hidden = jax.lax.conv_general_dilated(
            hidden, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        hidden = jnp.maximum(hidden + offset, 0)
    hidden = jax.lax.reduce_window(
        hidden, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
    )
    return hidden.mean(axis=(1, 2)) @ dense + c


def test_curvature_of_each_start_is_that_of_its_hessian(tmp_path):
    # Noise for images: where a digit is blank, a maximum has ties, and no derivative of its own.
    settings, images = cnn_tiny.SETTINGS, digits_images()
    noise = np.random.default_rng(0).integers(0, 256, images.pixels.shape, dtype=np.uint8)
    images = dataclasses.replace(images, pixels=noise)
    cnn_starts.run_starts(settings, images, tmp_path)
    table = cnn_starts.starts_table(tmp_path)
    assert len(table) == 6
    public = settings.split(images)["calibration"][: settings.clip_examples]
    pixels, labels = images.pixels[public], images.labels[public]
    network = Network(settings.channels)
    start = network.init(source_key("initialisation", 0), 1 / 3)
    for weight, bias in network.layers(start):
        expected = np.sqrt(1 / 3 / np.prod(weight.shape[:-1]))
        assert np.std(weight) == pytest.approx(expected, rel=0.25) and not bias.any()

    def loss(theta):
        scores = by_hand(network.layers(theta), pixels, 127.5, 127.5)
        right = jnp.take_along_axis(scores, labels[:, None].astype(int), axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)

    product = jax.jit(lambda v: jax.jvp(jax.grad(loss), (start,), (v,))[1])
    operator = scipy.sparse.linalg.LinearOperator(
        (len(start),) * 2, lambda v: np.asarray(product(v.astype(np.float32))), dtype=np.float32
    )
    largest = scipy.sparse.linalg.eigsh(operator, 1, which="LA", return_eigenvectors=False)[0]
    found = table.loc["PyTorch's default, -1 to 1"]
    assert found["largest curvature"] == pytest.approx(largest, rel=0.02)
    assert found["eta_0"] == pytest.approx(0.3 / largest, rel=0.02)
