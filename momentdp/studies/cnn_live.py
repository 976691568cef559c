"""Short private runs of the full CNN, seconds on one core: what the book's chapter shows live."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from momentdp._checks import finite_array, refuse
from momentdp.studies.cnn import (
    clipped_gradient,
    correlated_noise,
    evaluate,
    hessian_vector_product,
    largest_eigenvalue,
    source_key,
    train,
)
from momentdp.studies.images import ImageSet, digits_images, shard_examples, split_examples
from momentdp.studies.network import Network


@dataclass(frozen=True)
class LiveRun:
    """A short run and what it started from; `test_accuracy` and `test_loss` are after it."""

    source: str
    clip_norm: float
    largest_eigenvalue: float
    learning_rate: float
    losses: Float[np.ndarray, " steps"]
    clipped: Float[np.ndarray, " steps"]
    test_accuracy: float
    test_loss: float


def live_runs(
    noising_matrices: Mapping[str, ArrayLike],
    *,
    images: ImageSet | None = None,
    momentum: float = 0.9,
    noise_multiplier: float,
    rate_scale: float = 0.3,
    batch_size: int = 40,
    data_seed: int = 0,
    init_seed: int = 0,
    order_seed: int = 0,
    noise_seed: int = 0,
) -> dict[str, LiveRun]:
    """A few private steps of 40 examples for each mechanism, all from one calibrated start.

    Args:
        noising_matrices: name -> (steps, steps) C^-1; all zeros trains without noise.
        images: scikit-learn's digits when left out.
        noise_multiplier: noise per unit of clip norm, at sensitivity 1.
        rate_scale: eta lambda_max; the rate is constant.
    Raises:
        ValueError: matrices that are not square, finite and of one size, or too few images.
    """
    matrices = {n: finite_array("noising_matrices", C, 2) for n, C in noising_matrices.items()}
    sizes = {size for C in matrices.values() for size in C.shape}
    if len(sizes) != 1:
        raise refuse("noising_matrices", f"sizes {sizes}", "pass square matrices of one size")
    (steps,) = sizes
    images = images or digits_images()
    split = split_examples(
        len(images.labels),
        data_seed=data_seed,
        train=steps * batch_size,
        calibration=40,
        validation=0,
        test=200,
    )
    shards = shard_examples(
        split["train"], steps=steps, batch_size=batch_size, order_seed=order_seed
    )
    network = Network.for_device()
    parameters = network.init(source_key("initialisation", init_seed))
    public, held_out = split["calibration"], split["test"]
    labels = images.labels.astype(np.int32)
    _, _, norms = clipped_gradient(
        network, parameters, images.pixels[public], labels[public], jnp.inf
    )
    clip_norm = float(np.median(norms))
    product = hessian_vector_product(network, parameters, images.pixels[public], labels[public])
    largest = largest_eigenvalue(product, len(parameters))
    rate = rate_scale / largest
    stddev = noise_multiplier * clip_norm / batch_size
    runs = {}
    for name, matrix in matrices.items():
        run = train(
            network,
            parameters,
            images,
            shards,
            correlated_noise(matrix, len(parameters), stddev=stddev, noise_seed=noise_seed),
            learning_rates=np.full(steps, rate),
            momentum=momentum,
            clip_norm=clip_norm,
        )
        accuracy, loss = evaluate(
            network, run.parameters, images.pixels[held_out], labels[held_out]
        )
        runs[name] = LiveRun(
            source=images.source,
            clip_norm=clip_norm,
            largest_eigenvalue=largest,
            learning_rate=rate,
            losses=run.losses,
            clipped=run.clipped,
            test_accuracy=float(accuracy),
            test_loss=float(loss),
        )
    return runs


def ledger_rows() -> dict[str, int]:
    """What the network and the splits of G.1 are, from the code that makes them."""
    parts = {"train": 40_000, "calibration": 2_000, "validation": 3_000, "test": 5_000}
    split = split_examples(50_000, data_seed=0, **parts)
    shards = shard_examples(split["train"], steps=100, batch_size=400, order_seed=0)
    sizes = {f"cnn.split.{name}": len(np.unique(rows)) for name, rows in split.items()}
    parameters = Network.for_device().init(source_key("initialisation", 0))
    return sizes | {
        "cnn.parameters": len(parameters),
        "cnn.shards": len(shards),
        "cnn.shard_size": shards.shape[1],
    }
