"""The two small networks of the boundary study, for 16 x 16 colour images given as rows.

Parameters are one float32 vector, where noise and curvature live. Networks are values: hashable, so
that compiled functions are shared by all runs.
"""

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from momentdp.studies.cnn import source_key
from momentdp.studies.network import patches_convolution

CHUNK = 8  # examples whose gradients the CNN holds at a time: the fastest of 1 to 40 on a CPU


@dataclass(frozen=True)
class SmallNetwork:
    """Layers of weights of these shapes (the last axis counts outputs), each with a bias."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def parameters(self) -> int:
        """How many."""
        return sum(math.prod(shape) + shape[-1] for shape in self.shapes)

    def init(self, seed: int) -> Float[Array, " parameters"]:
        """He normal weights and zero biases."""
        keys, parts = jax.random.split(source_key("initialisation", seed), len(self.shapes)), []
        for key, shape in zip(keys, self.shapes, strict=True):
            scale = np.sqrt(2 / math.prod(shape[:-1]))
            parts += [scale * jax.random.normal(key, (math.prod(shape),)), jnp.zeros(shape[-1])]
        return jnp.concatenate(parts).astype(jnp.float32)

    def layers(self, parameters) -> list[Array]:
        """Weight, bias, weight, bias and so on."""
        shapes = [shape for weight in self.shapes for shape in (weight, weight[-1:])]
        parts = jnp.split(parameters, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def losses(self, parameters, inputs, labels) -> Float[Array, " n"]:
        """Cross-entropy of each example, in nats."""
        scores = self.scores(parameters, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(scores, labels)


@dataclass(frozen=True)
class Perceptron(SmallNetwork):
    """One hidden layer."""

    def scores(self, parameters, inputs) -> Float[Array, "n classes"]:
        W, b, V, c = self.layers(parameters)
        return jax.nn.relu(inputs @ W + b) @ V + c

    def gradient_norms(self, parameters, inputs, labels) -> Float[Array, " n"]:
        """Without the gradients: a dense layer's has the norm |input| |delta|."""
        W, b, V, c = self.layers(parameters)
        hidden = jax.nn.relu(inputs @ W + b)
        delta = jax.nn.softmax(hidden @ V + c) - jax.nn.one_hot(labels, len(c))
        below = (delta @ V.T) * (hidden > 0)
        return jnp.sqrt(
            (1 + jnp.sum(hidden**2, 1)) * jnp.sum(delta**2, 1)
            + (1 + jnp.sum(inputs**2, 1)) * jnp.sum(below**2, 1)
        )

    def clipped_gradient(self, parameters, inputs, labels, clip_norm):
        """Mean of the clipped gradients, in two passes (tests compare it with jax-privacy's)."""
        norms = self.gradient_norms(parameters, inputs, labels)
        weights = jnp.minimum(1.0, clip_norm / norms)
        return jax.grad(lambda p: jnp.mean(weights * self.losses(p, inputs, labels)))(parameters)


@dataclass(frozen=True)
class Convolutional(SmallNetwork):
    """Two 3 x 3 convolutions, each with a 2 x 2 maximum after it, and a dense layer."""

    def scores(self, parameters, inputs) -> Float[Array, "n classes"]:
        *convolutions, V, c = self.layers(parameters)
        hidden = jnp.asarray(inputs).reshape(-1, 16, 16, 3)
        for kernel, bias in zip(convolutions[::2], convolutions[1::2], strict=True):
            hidden = patches_convolution(hidden, kernel)
            n, height, width, channels = hidden.shape
            blocks = hidden.reshape(n, height // 2, 2, width // 2, 2, channels)
            hidden = jax.nn.relu(blocks.max(axis=(2, 4)) + bias)  # as relu first, a quarter of it
        return hidden.reshape(len(inputs), -1) @ V + c

    def _gradients(self, parameters, inputs, labels) -> Float[Array, "n parameters"]:
        def loss(p, image, label):
            return self.losses(p, image[None], label[None])[0]

        return jax.vmap(jax.grad(loss), (None, 0, 0))(parameters, inputs, labels)

    def gradient_norms(self, parameters, inputs, labels) -> Float[Array, " n"]:
        def norm(example):
            return jnp.linalg.norm(self._gradients(parameters, *(a[None] for a in example))[0])

        return jax.lax.map(norm, (inputs, labels), batch_size=CHUNK)

    def clipped_gradient(self, parameters, inputs, labels, clip_norm):
        """Mean of the clipped gradients (tests compare it with jax-privacy's)."""
        chunk = math.gcd(CHUNK, len(labels))

        def add(total, examples):
            gradients = self._gradients(parameters, *examples)
            norms = jnp.linalg.norm(gradients, axis=1)
            return total + jnp.minimum(1.0, clip_norm / norms) @ gradients, None

        parts = inputs.reshape(-1, chunk, inputs.shape[1]), labels.reshape(-1, chunk)
        return jax.lax.scan(add, jnp.zeros_like(parameters), parts)[0] / len(labels)


NETWORKS = {
    "mlp": Perceptron(((768, 64), (64, 10))),
    "cnn": Convolutional(((3, 3, 3, 16), (3, 3, 16, 32), (512, 10))),
}
