"""The simulator against closed forms, its independence, and its resumption."""

import ast
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from momentdp.studies import simulator

SOURCE = Path(simulator.__file__)
# (sigma^2 / 2) eta (1 + mu) / ((1 - mu) (2 (1 + mu) - eta lambda)) at mu=.9, eta=.3, lambda=sigma=1
STATIONARY = 0.8142857143


def within(result, expected, sigmas=4.0):
    return abs(result["mean"] - expected) < sigmas * result["half_width"] / simulator.NORMAL_95


def test_imports_numpy_and_the_standard_library_only():
    imported = set()
    for node in ast.walk(ast.parse(SOURCE.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module.split(".")[0])
    assert imported - sys.stdlib_module_names == {"numpy"}


def test_runs_from_its_file_alone(tmp_path):
    """A process of its own loads the file by path: neither jax nor momentdp come with it."""
    code = f"""
import runpy, sys
simulate = runpy.run_path({str(SOURCE)!r})["simulate"]
result = simulate([[1.0]], [1.0], [1.0], 0.0, seed=0, replicates=10)
loaded = {{name.split(".")[0] for name in sys.modules}}
print(result["replicates"], *sorted(loaded & {{"jax", "jaxlib", "momentdp", "scipy", "optax"}}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "10\n", done.stderr


def test_iid_stationary_value():
    steps = 200  # the slowest mode decays as 0.9^(t/2)
    result = simulator.simulate(
        np.eye(steps), [1.0], np.full(steps, 0.3), 0.9, seed=1, replicates=20_000, batch=5000
    )
    assert result["replicates"] == 20_000
    assert result["half_width"] < 0.02
    assert within(result, STATIONARY)
    assert not within(result, 1.04 * STATIONARY)


def test_two_steps_by_hand():
    """T=2: e_2 = -(eta1 z1 + (eta0 + eta1 mu - eta1 lambda eta0) z0), z = C^-1 w, C = [[1,0],[c,2]].

    The largest column norm is 2 and z0 = w0, z1 = (w1 - c w0) / 2.
    """
    c, mu, lam, eta, sigma = 0.5, 0.6, 1.5, (0.2, 0.4), 3.0
    on_z0 = eta[0] + eta[1] * mu - eta[1] * lam * eta[0]
    variance = (on_z0 - eta[1] * c / 2) ** 2 + (eta[1] / 2) ** 2
    expected = 0.5 * lam * (2 * sigma) ** 2 * variance
    result = simulator.simulate(
        [[1.0, 0.0], [c, 2.0]],
        [lam],
        eta,
        mu,
        noise_multiplier=sigma,
        seed=2,
        replicates=200_000,
        batch=50_000,
    )
    assert within(result, expected)
    # One Gaussian mode: the loss is expected x chi-square with one degree of freedom.
    assert result["variance"] == pytest.approx(2 * expected**2, rel=0.05)


def test_flat_mode_carries_no_loss_and_modes_add():
    rates, C = np.full(5, 0.1), np.eye(5)
    settings = {"seed": 3, "replicates": 4000, "batch": 1000}
    assert simulator.simulate(C, [0.0], rates, 0.9, **settings)["mean"] == 0.0
    one = simulator.simulate(C, [1.0], rates, 0.9, **settings)
    two = simulator.simulate(C, [1.0, 1.0], rates, 0.9, **settings)
    assert abs(two["mean"] - 2 * one["mean"]) < 3 * one["half_width"]


def test_streaming_moments_are_those_of_all_losses():
    """Uneven batches merged equal one pass over the same draws."""
    args = (np.tril(np.ones((3, 3))), [1.0, 0.5], np.full(3, 0.3), 0.5)
    got = simulator.simulate(*args, seed=4, replicates=250, batch=100)
    draws = [
        np.random.default_rng([4, k]).standard_normal((3, 2, n))
        for k, n in enumerate((100, 100, 50))
    ]
    C, lam, eta, mu = args
    losses = np.concatenate([simulator.final_losses(C, np.array(lam), eta, mu, w) for w in draws])
    assert got["mean"] == pytest.approx(losses.mean(), rel=1e-12)
    assert got["variance"] == pytest.approx(losses.var(ddof=1), rel=1e-12)


# MA(1) strategy against white noise on one slow mode: z_t = w_t - z_{t-1} / 2 partly cancels.
STEPS = 12
PAIR = (np.eye(STEPS), np.eye(STEPS) + 0.5 * np.eye(STEPS, k=-1), [0.2], np.full(STEPS, 0.1), 0.5)


def test_pair_stops_at_a_quarter_of_the_gap():
    result = simulator.simulate_pair(*PAIR, seed=5, batch=500)
    first, second, difference = result["mean"]
    assert result["resolved"]
    assert result["replicates"] >= simulator.FEWEST_REPLICATES
    assert result["half_width"][2] <= 0.25 * abs(difference)
    assert difference == pytest.approx(second - first, rel=1e-9)
    impulse = [exact_impulse(t) for t in range(STEPS)]
    white = 0.5 * 0.2 * np.sum(np.square(impulse))
    shaped = np.linalg.solve(PAIR[1].T, impulse) * np.sqrt(1.25)
    truth = [white, 0.5 * 0.2 * np.sum(shaped**2)]
    for mean, half_width, value in zip(result["mean"], result["half_width"], truth, strict=False):
        assert abs(mean - value) < 2 * half_width
    assert np.sign(difference) == np.sign(truth[1] - truth[0])


def exact_impulse(t):
    """Closed form: -eta (r1^(T-t) - r2^(T-t)) / (r1 - r2), roots of x^2 - (1+mu-eta lambda) x + mu."""
    r1, r2 = np.roots([1.0, -(1.5 - 0.02), 0.5])
    return -0.1 * ((r1 ** (STEPS - t) - r2 ** (STEPS - t)) / (r1 - r2)).real


def test_same_mechanism_twice_is_never_resolved():
    pair = (PAIR[0], PAIR[0], *PAIR[2:])
    result = simulator.simulate_pair(*pair, seed=6, batch=500, max_replicates=1500)
    assert result["mean"][2] == 0.0
    assert result["replicates"] == 1500


def test_resumes_to_the_same_last_bit(tmp_path):
    path = tmp_path / "pair.json"
    whole = simulator.simulate_pair(*PAIR, seed=7, batch=200, share=0.05, max_replicates=2000)
    stopped = simulator.simulate_pair(
        *PAIR, seed=7, batch=200, share=0.05, max_replicates=600, checkpoint=path
    )
    assert json.loads(path.read_text())["replicates"] == 600 == stopped["replicates"]
    resumed = simulator.simulate_pair(
        *PAIR, seed=7, batch=200, share=0.05, max_replicates=2000, checkpoint=path
    )
    assert resumed == whole
    with pytest.raises(ValueError, match="^checkpoint: got .* of another case; pass"):
        simulator.simulate_pair(*PAIR, seed=8, batch=200, checkpoint=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy_matrix": np.eye(3)}, r"strategy: got shape \(3, 3\); pass \(2, 2\)"),
        ({"strategy_matrix": [[1.0, 1.0], [0.0, 1.0]]}, "strategy: got an upper entry"),
        ({"strategy_matrix": [[1.0, 0.0], [0.0, 0.0]]}, "strategy: .* zero diagonal"),
        ({"eigenvalues": [-1.0]}, "negative one; pass values >= 0"),
        ({"learning_rates": [0.1, math.nan]}, "got NaN or infinity; pass finite"),
        ({"noise_multiplier": -1.0}, "negative one"),
    ],
)
def test_bad_input_is_refused(change, message):
    good = {"strategy_matrix": np.eye(2), "eigenvalues": [1.0], "learning_rates": [0.1, 0.1]}
    with pytest.raises(ValueError, match=message):
        simulator.simulate(**(good | {"momentum": 0.5} | change), seed=0, replicates=10)
