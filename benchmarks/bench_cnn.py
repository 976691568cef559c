"""Clipped gradients of the CNN: examples per CPU-second beside `lax.conv` and beside no clipping.

The machine's own speed is measured too (a 1024^3 matrix product), since rates mean little without
it: 0.173 GFLOP an example forward and backward.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np

from momentdp.studies.cnn import clipped_gradient
from momentdp.studies.images import digits_images
from momentdp.studies.network import Network, lax_convolution

EXAMPLES, ROUNDS, GFLOP = 100, 5, 0.173


def plain_gradient(network: Network):
    """Mean gradient without clipping, one example at a time as in the clipped one."""

    def gradient(parameters, pixels, labels, _):
        def add(total, example):
            loss = jax.grad(lambda p: network.losses(p, example[0][None], example[1][None])[0])
            return total + loss(parameters), None

        return jax.lax.scan(add, jnp.zeros_like(parameters), (pixels, labels))[0] / len(labels)

    return jax.jit(gradient)


def cpu_seconds(function) -> float:
    """CPU time of one call, all threads together."""
    start = time.process_time()
    jax.block_until_ready(function())
    return time.process_time() - start


def main() -> None:
    """Print the rates: median of rounds that are interleaved, so that load falls on all alike."""
    images = digits_images()
    arguments = images.pixels[:EXAMPLES], images.labels[:EXAMPLES].astype(np.int32), 10.0
    fast = Network()
    parameters = fast.init(jax.random.key(0))
    contestants = {"clipped, patches, microbatch 1": fast}
    for microbatch in (4, None):
        name = f"clipped_grad, lax.conv, microbatch {microbatch or 'all'}"
        contestants[name] = Network(convolution=lax_convolution, microbatch=microbatch)
    calls = {
        name: lambda n=network: clipped_gradient(n, parameters, *arguments)
        for name, network in contestants.items()
    }
    unclipped = plain_gradient(fast)
    calls["not clipped, patches, microbatch 1"] = lambda: unclipped(parameters, *arguments)
    square = jnp.ones((1024, 1024), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    calls["1024^3 product"] = lambda: product(square)
    for call in calls.values():
        call()
    seconds = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            seconds[name].append(cpu_seconds(call))
    median = {name: float(np.median(times)) for name, times in seconds.items()}
    machine = 2 * 1.024**3 / median.pop("1024^3 product")
    print(f"matrix product: {machine:.0f} GFLOP per CPU-second")
    for name, each in median.items():
        rate = EXAMPLES / each
        share = rate * GFLOP / machine
        print(
            f"{name:40s} {rate:6.0f} examples per CPU-second, {share:4.0%} of the product's speed"
        )
    ours, rest = list(median.values())[0], list(median.values())[1:3]
    print(f"patches over the best lax.conv: {min(rest) / ours:.1f} x")


if __name__ == "__main__":
    main()
