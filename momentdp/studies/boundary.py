"""Where the neural boundary is crossed: a small network, mechanisms made for two optimizers.

The network is 768-64-10 on 16 x 16 colour images, trained by one pass over disjoint shards, which
takes half a second. ``boundary_study`` holds the study that trains it.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from momentdp.dynamics.spectra import Spectrum, from_hvp
from momentdp.studies.cnn import source_key
from momentdp.studies.images import ImageSet, split_examples

SIZES = (768, 64, 10)
PARAMETERS = SIZES[0] * SIZES[1] + SIZES[1] + SIZES[1] * SIZES[2] + SIZES[2]


@dataclass(frozen=True)
class Examples:
    """Standardised 16 x 16 images as rows, and their labels."""

    inputs: Float[np.ndarray, "n 768"]
    labels: Int[np.ndarray, " n"]


def prepare(images: ImageSet, data_seed: int = 0, **sizes: int) -> dict[str, Examples]:
    """The disjoint parts of the study by `images.split_examples`; "calibration" is public.

    Images are halved by 2 x 2 means and standardised by the public images' mean and deviation of
    each channel, so that nothing private decides the scale.
    """
    split = split_examples(len(images.labels), data_seed=data_seed, **sizes)
    n = len(images.labels)
    small = images.pixels.reshape(n, 16, 2, 16, 2, 3).mean(axis=(2, 4), dtype=np.float32)
    public = small[split["calibration"]]
    small = (small - public.mean(axis=(0, 1, 2))) / public.std(axis=(0, 1, 2))
    rows, labels = small.reshape(n, -1), images.labels.astype(np.int32)
    return {part: Examples(rows[index], labels[index]) for part, index in split.items()}


def initial(seed: int) -> Float[Array, " parameters"]:
    """He normal weights and zero biases, as one vector."""
    first, second = jax.random.split(source_key("initialisation", seed))
    a, b = (np.sqrt(2 / size) for size in SIZES[:2])
    return jnp.concatenate(
        [
            a * jax.random.normal(first, (SIZES[0] * SIZES[1],)),
            jnp.zeros(SIZES[1]),
            b * jax.random.normal(second, (SIZES[1] * SIZES[2],)),
            jnp.zeros(SIZES[2]),
        ]
    ).astype(jnp.float32)


def _layers(parameters):
    ends = np.cumsum([SIZES[0] * SIZES[1], SIZES[1], SIZES[1] * SIZES[2]])
    W, b, V, c = jnp.split(parameters, ends)
    return W.reshape(SIZES[:2]), b, V.reshape(SIZES[1:]), c


def losses(parameters, inputs, labels) -> Float[Array, " n"]:
    """Cross-entropy of each example, in nats."""
    W, b, V, c = _layers(parameters)
    scores = jax.nn.relu(inputs @ W + b) @ V + c
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels)


def gradient_norms(parameters, inputs, labels) -> Float[Array, " n"]:
    """Each example's gradient norm without its gradient: a dense layer's is |input| |delta|."""
    W, b, V, c = _layers(parameters)
    hidden = jax.nn.relu(inputs @ W + b)
    delta = jax.nn.softmax(hidden @ V + c) - jax.nn.one_hot(labels, SIZES[2])
    below = (delta @ V.T) * (hidden > 0)
    return jnp.sqrt(
        (1 + jnp.sum(hidden**2, 1)) * jnp.sum(delta**2, 1)
        + (1 + jnp.sum(inputs**2, 1)) * jnp.sum(below**2, 1)
    )


def clipped_gradient(parameters, inputs, labels, clip_norm) -> Float[Array, " parameters"]:
    """Mean of the clipped gradients, in two passes (tests compare it with jax-privacy's)."""
    norms = gradient_norms(parameters, inputs, labels)
    weights = jnp.minimum(1.0, clip_norm / norms)
    return jax.grad(lambda p: jnp.mean(weights * losses(p, inputs, labels)))(parameters)


@jax.jit
def train(
    start: Float[Array, " parameters"],
    shards,
    noise: Float[Array, "steps runs parameters"],
    learning_rates: Float[Array, " steps"],
    momentum,
    clip_norm,
) -> Float[Array, "runs parameters"]:
    """Final parameters of heavy-ball runs that differ in their noise only.

    ``shards`` are (inputs, labels) of shapes (steps, batch, 768) and (steps, batch).
    """

    def step(state, given):
        parameters, velocity = state
        (inputs, labels), z, rate = given
        gradients = jax.lax.map(
            lambda p: clipped_gradient(p, inputs, labels, clip_norm), parameters
        )
        velocity = momentum * velocity + gradients + z
        return (parameters - rate * velocity, velocity), None

    parameters = jnp.broadcast_to(start, (noise.shape[1], len(start)))
    state = (parameters, jnp.zeros_like(parameters))
    return jax.lax.scan(step, state, (shards, noise, learning_rates))[0][0]


@jax.jit
def outcomes(parameters, inputs, labels) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(mean loss in nats, accuracy)."""
    W, b, V, c = _layers(parameters)
    chosen = (jax.nn.relu(inputs @ W + b) @ V + c).argmax(-1)
    return losses(parameters, inputs, labels).mean(), jnp.mean(chosen == labels)


def curvature(parameters, public: Examples, clip_norm: float, seed: int) -> Spectrum:
    """Spectrum of the Hessian of the public loss with each example weighted as clipping weighs it."""
    weights = jnp.minimum(1.0, clip_norm / gradient_norms(parameters, *_pair(public)))
    slope = jax.grad(lambda p: jnp.mean(weights * losses(p, *_pair(public))))
    product = jax.jit(lambda v: jax.jvp(slope, (parameters,), (v,))[1])
    return from_hvp(product, PARAMETERS, 30, 10, source_key("curvature", seed), "clip")


def median_norm(parameters, public: Examples) -> float:
    """The clip norm: the median gradient norm of the public examples."""
    return float(np.median(np.asarray(gradient_norms(parameters, *_pair(public)))))


def _pair(examples: Examples):
    return examples.inputs, examples.labels
