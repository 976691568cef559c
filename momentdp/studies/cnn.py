"""Private training of the CNN of Appendix G: calibration on public examples, and one run.

Units: the loss is a mean in nats; the privatized gradient is the sum of clipped per-example
gradients over the batch size, plus noise of standard deviation
noise_multiplier x clip_norm / batch_size, correlated over the steps by the noising matrix C^-1.
Each random source has its own seed; equal seeds of different sources give unrelated draws.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy.clipping import clipped_grad
from jaxtyping import Array, Float, Int, PRNGKeyArray, UInt8
from matfree import decomp

from momentdp._checks import refuse
from momentdp.dynamics.spectra import Spectrum, from_hvp
from momentdp.studies.images import ImageSet
from momentdp.studies.network import AnyArray, Network

EVALUATION_BATCH = 500  # on an accelerator; on a CPU four at a time are the fastest
SOURCES = ("initialisation", "noise", "curvature")


def source_key(source: str, seed: int) -> PRNGKeyArray:
    """The jax key of one random source."""
    return jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), SOURCES.index(source))


@partial(jax.jit, static_argnums=0)
def clipped_gradient(
    network: Network,
    parameters: Float[Array, " parameters"],
    pixels: UInt8[AnyArray, "n h w 3"],
    labels: Int[AnyArray, " n"],
    clip_norm: Float[Array, ""] | float,
) -> tuple[Float[Array, " parameters"], Float[Array, " n"], Float[Array, " n"]]:
    """(mean of the clipped gradients, losses, gradient norms before clipping)."""
    clipped = clipped_grad(
        lambda *arguments: network.losses(*arguments)[0],
        l2_clip_norm=clip_norm,
        normalize_by=len(labels),
        batch_argnums=(1, 2),
        return_values=True,
        return_grad_norms=True,
        microbatch_size=network.microbatch,
    )
    mean, example = clipped(parameters, pixels, labels)
    return mean, example.values, example.grad_norms


@partial(jax.jit, static_argnums=0)
def evaluate(
    network: Network,
    parameters: Float[Array, " parameters"],
    pixels: UInt8[AnyArray, "n h w 3"],
    labels: Int[AnyArray, " n"],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(accuracy, mean loss)."""
    scores = jax.lax.map(
        lambda image: network.logits(parameters, image[None])[0],
        pixels,
        batch_size=4 * network.microbatch if network.microbatch else EVALUATION_BATCH,
    )
    losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
    return jnp.mean(scores.argmax(-1) == labels), losses.mean()


def hessian_vector_product(
    network: Network,
    parameters: Float[Array, " parameters"],
    pixels: UInt8[np.ndarray, "n h w 3"],
    labels: Int[np.ndarray, " n"],
) -> Callable:
    """v -> H v, the Hessian of the mean loss over these examples, one example at a time."""

    @jax.custom_batching.sequential_vmap
    def product(vector):
        def add(total, example):
            pixels, label = example
            gradient = jax.grad(lambda p: network.losses(p, pixels[None], label[None])[0])
            return total + jax.jvp(gradient, (parameters,), (vector,))[1], None

        total, _ = jax.lax.scan(add, jnp.zeros_like(vector), (pixels, labels))
        return total / len(labels)

    return product


def largest_eigenvalue(
    product: Callable, size: int, *, steps: int = 8, curvature_seed: int = 0
) -> float:
    """Of v -> H v by Lanczos steps: seconds, as it leaves out the rest of the spectrum."""
    lanczos = decomp.tridiag_sym(steps, reortho="full")
    start = jax.random.normal(source_key("curvature", curvature_seed), (size,), jnp.float32)
    return float(np.linalg.eigvalsh(lanczos(product, start).J_small)[-1])


@dataclass(frozen=True)
class Calibration:
    """What the public calibration examples decide: the clip norm and the curvature."""

    clip_norm: float
    spectrum: Spectrum


def calibrate(
    network: Network,
    parameters: Float[Array, " parameters"],
    pixels: UInt8[np.ndarray, "n h w 3"],
    labels: Int[np.ndarray, " n"],
    *,
    clip_examples: int = 200,
    num_eigenvalues: int = 30,
    num_probes: int = 10,
    curvature_seed: int = 0,
) -> Calibration:
    """Median gradient norm of the first `clip_examples`, and the spectrum over all examples (G.2).

    The spectrum is Lanczos' top `num_eigenvalues` and the rest of Hutchinson's trace as a bulk.
    """
    first = slice(clip_examples)
    _, _, norms = clipped_gradient(network, parameters, pixels[first], labels[first], jnp.inf)
    product = hessian_vector_product(network, parameters, pixels, labels)
    key = source_key("curvature", curvature_seed)
    spectrum = from_hvp(product, len(parameters), num_eigenvalues, num_probes, key, "clip")
    return Calibration(float(np.median(norms)), spectrum)


def correlated_noise(
    noising_matrix: Float[np.ndarray, "steps steps"],
    parameters: int,
    *,
    stddev: float,
    noise_seed: int,
) -> Float[np.ndarray, "steps parameters"]:
    """stddev C^-1 W; W depends on the seed alone, so that mechanisms share their random numbers."""
    shape = (len(noising_matrix), parameters)
    white = jax.random.normal(source_key("noise", noise_seed), shape, jnp.float32)
    return (stddev * noising_matrix).astype(np.float32) @ np.asarray(white)


@dataclass(frozen=True)
class Run:
    """Losses and fractions of clipped examples at each step, and the final parameters.

    Both are means over the step's shard, before the update; `visited` is what `visit` returned.
    """

    losses: Float[np.ndarray, " steps"]
    clipped: Float[np.ndarray, " steps"]
    parameters: Float[Array, " parameters"]
    visited: list


def train(
    network: Network,
    parameters: Float[Array, " parameters"],
    images: ImageSet,
    shards: Int[np.ndarray, "steps batch"],
    noise: Float[np.ndarray, "steps parameters"],
    *,
    learning_rates: Float[np.ndarray, " steps"],
    momentum: float,
    clip_norm: float,
    checkpoints: Sequence[int] = (),
    visit: Callable | None = None,
) -> Run:
    """Heavy-ball private training, v <- mu v + g + z, theta <- theta - eta_t v, one shard a step.

    `visit(step, parameters)` is called after each of the steps (counted from 1) in `checkpoints`.
    `ValueError` when the loss stops being finite.
    """
    velocity = jnp.zeros_like(parameters)
    losses, clipped, visited = [], [], []
    for step, shard in enumerate(shards):
        pixels, labels = images.pixels[shard], images.labels[shard].astype(np.int32)
        mean, values, norms = clipped_gradient(network, parameters, pixels, labels, clip_norm)
        velocity = momentum * velocity + mean + noise[step]
        parameters = parameters - np.float32(learning_rates[step]) * velocity
        losses.append(float(values.mean()))
        clipped.append(float((norms > clip_norm).mean()))
        if not np.isfinite(losses[-1]):
            raise refuse("learning_rates", f"a loss of {losses[-1]} at step {step}", "lower them")
        if step + 1 in checkpoints:
            visited.append(visit(step + 1, parameters))
    return Run(np.array(losses), np.array(clipped), parameters, visited)
