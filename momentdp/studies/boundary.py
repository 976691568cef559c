"""Where the neural boundary is crossed: small networks, mechanisms made for two optimizers.

The networks see 16 x 16 colour images and are trained by one pass over disjoint shards.
``boundary_networks`` holds the networks, ``boundary_study`` the study that trains them.
"""

import math
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from matfree import decomp

from momentdp.dynamics.spectra import Spectrum, from_hvp
from momentdp.privacy import noise_multiplier
from momentdp.studies.boundary_networks import SmallNetwork
from momentdp.studies.cnn import source_key
from momentdp.studies.images import ImageSet, shard_examples, split_examples

STEPS, BATCH, DELTA = 100, 400, 1e-5


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


@partial(jax.jit, static_argnames=("network", "path"))
def train(
    network: SmallNetwork,
    start: Float[Array, " parameters"],
    shards,
    noise: Float[Array, "steps runs parameters"],
    learning_rates: Float[Array, " steps"],
    momentum,
    clip_norm,
    *,
    path: bool = False,
):
    """Final parameters (runs, parameters) of heavy-ball runs that differ in their noise only.

    ``shards`` are (inputs, labels) of shapes (steps, batch, 768) and (steps, batch). With ``path``
    the parameters after every step, (steps, runs, parameters).
    """

    def step(state, given):
        parameters, velocity = state
        (inputs, labels), z, rate = given
        gradients = jax.lax.map(
            lambda p: network.clipped_gradient(p, inputs, labels, clip_norm), parameters
        )
        velocity = momentum * velocity + gradients + z
        parameters = parameters - rate * velocity
        return (parameters, velocity), parameters if path else None

    parameters = jnp.broadcast_to(start, (noise.shape[1], len(start)))
    state = (parameters, jnp.zeros_like(parameters))
    (final, _), visited = jax.lax.scan(step, state, (shards, noise, learning_rates))
    return visited if path else final


def white_noise(
    noising: np.ndarray, parameters: int, scale: float, seed: int
) -> Float[np.ndarray, "steps runs parameters"]:
    """Noise of matrices (runs, steps, steps): the same white noise for each run."""
    white = np.asarray(jax.random.normal(source_key("noise", seed), (len(noising[0]), parameters)))
    return np.stack([(scale * C).astype(np.float32) @ white for C in noising], axis=1)


def train_all(
    network: SmallNetwork,
    parts: dict[str, Examples],
    noising,
    epsilon: float,
    momentum: float,
    rate: float,
    seed: int,
    *,
    path: bool = False,
):
    """`train` of noising matrices (runs, steps, steps), which share one start, one order and one
    draw of white noise; ``rate`` is the effective one."""
    train_part, public = parts["train"], parts["calibration"]
    start = network.init(seed)
    clip = median_norm(network, start, public)
    steps = len(noising[0])
    every = np.arange(len(train_part.labels))
    batch = min(BATCH, len(every) // steps)
    shards = shard_examples(every, steps=steps, batch_size=batch, order_seed=seed)
    scale = noise_multiplier(epsilon, DELTA) * clip / batch
    noise = white_noise(noising, network.parameters, scale, seed)
    rates = np.full(steps, rate * (1 - momentum), np.float32)
    given = train_part.inputs[shards], train_part.labels[shards]
    return train(network, start, given, noise, rates, momentum, clip, path=path)


@partial(jax.jit, static_argnames="network")
def outcomes(
    network: SmallNetwork, parameters, inputs, labels
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(mean loss in nats, accuracy)."""
    scores = jax.lax.map(
        lambda row: network.scores(parameters, row[None])[0], inputs, batch_size=500
    )
    picked = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
    losses = jax.nn.logsumexp(scores, axis=1) - picked
    return losses.mean(), jnp.mean(scores.argmax(-1) == labels)


def hessian_product(network: SmallNetwork, parameters, public: Examples, clip_norm: float):
    """v -> H v, the Hessian of the public loss with each example weighted as clipping weighs it.

    A ``clip_norm`` of infinity clips nobody: the plain Hessian.
    """
    norms = network.gradient_norms(parameters, public.inputs, public.labels)
    given = public.inputs, public.labels, np.minimum(1.0, clip_norm / np.asarray(norms))
    n, chunk = len(norms), math.gcd(len(norms), 100)
    chunks = [a.reshape(-1, chunk, *a.shape[1:]) for a in given]

    def product(v):
        def add(total, part):
            inputs, labels, weights = part
            slope = jax.grad(lambda p: jnp.sum(weights * network.losses(p, inputs, labels)))
            return total + jax.jvp(slope, (parameters,), (v,))[1], None

        return jax.lax.scan(add, jnp.zeros_like(v), chunks)[0] / n

    return product


def curvature(
    network: SmallNetwork, parameters, public: Examples, clip_norm: float, seed: int
) -> Spectrum:
    """Spectrum behind `hessian_product`."""
    product = hessian_product(network, parameters, public, clip_norm)
    key = source_key("curvature", seed)
    return from_hvp(product, network.parameters, 30, 10, key, "clip")


def top_directions(
    network: SmallNetwork, parameters, public: Examples, clip_norm: float, count: int, seed: int
):
    """(largest eigenvalues (count,), eigenvectors (parameters, count)) by 30 Lanczos steps."""
    product = hessian_product(network, parameters, public, clip_norm)
    start = jax.random.normal(source_key("curvature", seed), (network.parameters,))
    lanczos = decomp.tridiag_sym(30, materialize=True, reortho="full")
    found = lanczos(product, start / jnp.linalg.norm(start))
    values, vectors = np.linalg.eigh(np.asarray(found.J_small))
    return values[-count:], np.asarray(found.Q_tall).T @ vectors[:, -count:]


def median_norm(network: SmallNetwork, parameters, public: Examples) -> float:
    """The clip norm: the median gradient norm of the public examples."""
    norms = network.gradient_norms(parameters, public.inputs, public.labels)
    return float(np.median(np.asarray(norms)))
