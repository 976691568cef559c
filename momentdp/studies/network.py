"""The convolutional network of Appendix G.1 in plain JAX, 140,714 float32 parameters."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8

CHANNELS = (32, 32, 64, 64, 128)
CLASSES = 10
POOLED = (1, 3)  # a 2 x 2 maximum follows these convolutions

AnyArray = Array | np.ndarray
Convolution = Callable[[Float[Array, "n h w c"], Float[Array, "3 3 c k"]], Float[Array, "n h w k"]]


def patches_convolution(
    images: Float[Array, "n h w c"], kernel: Float[Array, "3 3 c k"]
) -> Float[Array, "n h w k"]:
    """3 x 3 convolution with padding 1 as one matrix product over nine shifted copies.

    On a CPU with one example at a time this beats `lax.conv`, whose backward pass under `vmap`
    becomes a slow grouped convolution (benchmarks/bench_cnn.py prints by how much).
    """
    count, height, width, _ = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [padded[:, i : i + height, j : j + width] for i in range(3) for j in range(3)]
    weight = kernel.reshape(-1, kernel.shape[-1])
    patches = jnp.concatenate(shifted, axis=-1).reshape(-1, weight.shape[0])
    return (patches @ weight).reshape(count, height, width, -1)


def lax_convolution(
    images: Float[Array, "n h w c"], kernel: Float[Array, "3 3 c k"]
) -> Float[Array, "n h w k"]:
    """The same convolution through XLA, the better choice on an accelerator."""
    return jax.lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


@dataclass(frozen=True)
class Network:
    """The network with its parameters as one float32 vector, where noise and curvature live.

    `microbatch` is how many examples are worked on at a time; None is all of them. `inputs` are
    what is taken from a pixel, and what it is then divided by. Hashable, so that compiled functions
    are shared by all runs.
    """

    channels: tuple[int, ...] = CHANNELS
    convolution: Convolution = patches_convolution
    microbatch: int | None = 1
    inputs: tuple[float, float] = (0.0, 255.0)

    @classmethod
    def for_device(cls, channels: Sequence[int] = CHANNELS) -> "Network":
        """Patches, one example at a time on a CPU; `lax.conv` on whole batches elsewhere."""
        if jax.default_backend() == "cpu":
            return cls(tuple(channels))
        return cls(tuple(channels), lax_convolution, None)

    def _shapes(self) -> list[tuple[int, ...]]:
        kernels = [(3, 3, *pair) for pair in zip((3, *self.channels), self.channels, strict=False)]
        return [*kernels, (self.channels[-1], CLASSES)]

    def init(self, key: PRNGKeyArray, gain: float = 2.0) -> Float[Array, " parameters"]:
        """Normal weights of variance gain / fan-in (He's unless said otherwise), zero biases."""
        shapes, parts = self._shapes(), []
        for layer_key, shape in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
            scale = math.sqrt(gain / math.prod(shape[:-1]))
            parts.append(scale * jax.random.normal(layer_key, (math.prod(shape),), jnp.float32))
            parts.append(jnp.zeros(shape[-1], jnp.float32))
        return jnp.concatenate(parts)

    def layers(self, parameters: Float[Array, " parameters"]) -> list[tuple[Array, Array]]:
        """(weight, bias) of each layer: 3 x 3 convolutions (HWIO), then the dense layer."""
        shapes = self._shapes()
        ends = np.cumsum([size for shape in shapes for size in (math.prod(shape), shape[-1])])
        parts = jnp.split(parameters, ends[:-1])
        weights = [part.reshape(shape) for part, shape in zip(parts[::2], shapes, strict=True)]
        return list(zip(weights, parts[1::2], strict=True))

    def logits(
        self, parameters: Float[Array, " parameters"], pixels: UInt8[AnyArray, "n h w 3"]
    ) -> Float[Array, "n classes"]:
        """Class scores of images with pixels from 0 to 255."""
        *convolutions, (weight, bias) = self.layers(parameters)
        zero, unit = self.inputs
        hidden = (jnp.asarray(pixels).astype(jnp.float32) - zero) / unit
        for index, (kernel, offset) in enumerate(convolutions):
            hidden = jax.nn.relu(self.convolution(hidden, kernel) + offset)
            if index in POOLED:
                count, height, width, channels = hidden.shape
                blocks = hidden.reshape(count, height // 2, 2, width // 2, 2, channels)
                hidden = blocks.max(axis=(2, 4))
        return hidden.mean(axis=(1, 2)) @ weight + bias

    def losses(
        self,
        parameters: Float[Array, " parameters"],
        pixels: UInt8[AnyArray, "n h w 3"],
        labels: Int[AnyArray, " n"],
    ) -> Float[Array, " n"]:
        """Cross-entropy of each example, in nats."""
        return optax.softmax_cross_entropy_with_integer_labels(
            self.logits(parameters, pixels), labels
        )
