"""Private logistic regression on digits: what digits.yaml refers to, and a training loop.

    momentdp rank examples/digits.yaml --report digits.html --export digits-noise
    python examples/digits.py digits-noise

The loop is plain jax-privacy and optax; momentdp only hands over the noise that it exported.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax_privacy import noise_addition
from jax_privacy.clipping import clipped_grad
from sklearn.datasets import load_digits

from momentdp.tool import export

PUBLIC, PRIVATE, BATCH = 300, 1280, 80


def images(start, stop):
    """Pixels in [0, 1] and labels of a slice of scikit-learn's digits, shuffled once."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))[start:stop]
    return jnp.asarray(digits.data[order] / 16, jnp.float32), jnp.asarray(digits.target[order])


def public_data():
    """Examples that nobody has to protect: for the curvature only."""
    return images(0, PUBLIC)


def parameters():
    return {"weights": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}


def loss(theta, data):
    pixels, labels = data
    logits = pixels @ theta["weights"] + theta["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def train(folder, noise_seed=0):
    """Eight epochs in a fixed order, so that an example comes back every 16 steps exactly.

    Returns the test losses after each step, and the noise that each step's gradient received.
    """
    mechanism, stddev = export.load(folder)
    pixels, labels = images(PUBLIC, PUBLIC + PRIVATE)
    test = images(PUBLIC + PRIVATE, None)
    gradient = clipped_grad(loss, l2_clip_norm=1.0, normalize_by=BATCH, batch_argnums=1)
    privatizer = noise_addition.matrix_factorization_privatizer(
        mechanism.to_jax_privacy(), stddev=stddev, prng_key=jax.random.key(noise_seed)
    )
    rate = optax.cosine_decay_schedule(1.0, mechanism.steps)
    optimizer = optax.sgd(rate, momentum=0.9)
    theta = parameters()
    noise_state, state = privatizer.init(theta), optimizer.init(theta)

    @jax.jit
    def step(theta, noise_state, state, batch):
        clean = gradient(theta, batch)
        private, noise_state = privatizer.update(clean, noise_state)
        update, state = optimizer.update(private, state, theta)
        added = jax.tree.map(jnp.subtract, private, clean)
        return optax.apply_updates(theta, update), noise_state, state, added

    losses, noise = [], []
    for t in range(mechanism.steps):
        at = BATCH * (t % (PRIVATE // BATCH))
        batch = pixels[at : at + BATCH], labels[at : at + BATCH]
        theta, noise_state, state, added = step(theta, noise_state, state, batch)
        losses.append(float(loss(theta, test)))
        noise.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(added)]))
    return np.array(losses), np.array(noise)


if __name__ == "__main__":
    losses, _ = train(sys.argv[1])
    for t in (1, 16, 32, 64, len(losses)):
        print(f"step {t:3d}  test loss {losses[t - 1]:.3f}")
