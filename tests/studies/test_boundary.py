"""The study beyond the neural boundary: clipping against jax-privacy, the frozen declaration, its
tables by hand, and one committed record trained again where CIFAR-10 is at hand."""

import dataclasses
import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.linalg
from jax_privacy.clipping import clipped_grad
from scipy import stats

from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import (
    boundary,
    boundary_designs,
    boundary_path_tables,
    boundary_study,
    boundary_tables,
)
from momentdp.studies.boundary_networks import NETWORKS
from momentdp.studies.images import digits_images, load_cifar10
from momentdp.studies.records import read_record
from momentdp.synthesize import synthesize

PARTS = {"train": 60, "calibration": 40, "validation": 20, "test": 30}
CIFAR = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg.tar.xz"


@pytest.fixture(scope="module")
def parts():
    return boundary.prepare(digits_images(), **PARTS)


@pytest.mark.parametrize(("name", "count"), [("mlp", 49_866), ("cnn", 10_218)])
def test_clipping_is_jax_privacy_s(parts, name, count):
    network = NETWORKS[name]
    inputs, labels = parts["train"].inputs[:12], parts["train"].labels[:12]
    start = network.init(3)
    assert len(start) == network.parameters == count
    norms = jax.jit(network.gradient_norms)(start, inputs, labels)
    clip = float(jnp.median(norms))
    oracle = clipped_grad(
        lambda p, x, y: network.losses(p, x, y)[0],
        l2_clip_norm=clip,
        normalize_by=12,
        batch_argnums=(1, 2),
        return_grad_norms=True,
    )
    expected, example = jax.jit(oracle)(start, inputs, labels)
    np.testing.assert_allclose(norms, example.grad_norms, rtol=1e-5)
    assert 0 < int((norms > clip).sum()) < 12
    ours = jax.jit(network.clipped_gradient)(start, inputs, labels, clip)
    assert jnp.linalg.norm(ours - expected) < 1e-5 * jnp.linalg.norm(expected)


def test_the_convolutional_network_by_lax(parts):
    """Scores against a transcription with lax's convolution and reduce_window's maximum."""
    network, inputs = NETWORKS["cnn"], parts["train"].inputs[:5]
    start = network.init(1) + 0.1  # biases that are not zero
    K, a, L, b, V, c = network.layers(start)
    hidden = jnp.asarray(inputs).reshape(5, 16, 16, 3)
    for kernel, bias in ((K, a), (L, b)):
        dimensions = ("NHWC", "HWIO", "NHWC")
        hidden = jax.lax.conv_general_dilated(
            hidden, kernel, (1, 1), "SAME", dimension_numbers=dimensions
        )
        window = (1, 2, 2, 1)
        hidden = jax.nn.relu(hidden + bias)
        hidden = jax.lax.reduce_window(hidden, -jnp.inf, jax.lax.max, window, window, "VALID")
    expected = hidden.reshape(5, -1) @ V + c
    np.testing.assert_allclose(network.scores(start, inputs), expected, rtol=1e-4, atol=1e-4)


def test_curvature_is_the_largest_eigenvalue_of_the_weighted_hessian(parts):
    """Against power iteration on Hessian-vector products of the whole public set at once."""
    network, public = NETWORKS["mlp"], parts["calibration"]
    start = network.init(0)
    clip = boundary.median_norm(network, start, public)
    norms = network.gradient_norms(start, public.inputs, public.labels)
    weights = jnp.minimum(1.0, clip / norms)
    slope = jax.jit(
        jax.grad(lambda p: jnp.mean(weights * network.losses(p, public.inputs, public.labels)))
    )
    v = np.random.default_rng(0).normal(size=len(start)).astype(np.float32)
    for _ in range(60):
        v = v / np.linalg.norm(v)
        product = np.asarray(jax.jvp(slope, (start,), (jnp.asarray(v),))[1])
        value, v = float(v @ product), product
    spectrum = boundary.curvature(network, start, public, clip, 0)
    assert abs(spectrum.largest / value - 1) < 1e-2
    assert spectrum.multiplicities.sum() == pytest.approx(network.parameters)
    values, vectors = boundary.top_directions(network, start, public, clip, 2, 0)
    assert values[-1] == pytest.approx(spectrum.largest, rel=1e-5)
    assert abs(vectors[:, -1] @ v) / np.linalg.norm(v) == pytest.approx(1.0, abs=1e-3)


def test_parts_are_disjoint_and_scaled_by_the_public_one(parts):
    assert {name: len(part.labels) for name, part in parts.items()} == PARTS
    channels = parts["calibration"].inputs.reshape(-1, 3)
    np.testing.assert_allclose(channels.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(channels.std(axis=0), 1, rtol=1e-4)


def test_noise_has_the_promised_covariance_and_is_common(parts):
    C = np.array([[1.0, 0.0, 0.0], [-0.5, 1.0, 0.0], [0.0, -0.5, 2.0]])
    noise = boundary.white_noise(np.stack([C, 2 * C]), 49_866, 0.3, seed=1)
    covariance = noise[:, 0] @ noise[:, 0].T / noise.shape[2]
    np.testing.assert_allclose(covariance, 0.09 * C @ C.T, atol=0.09 * 0.05)
    np.testing.assert_allclose(noise[:, 1], 2 * noise[:, 0], rtol=1e-5)


def test_a_run_depends_on_its_seed_alone(parts):
    matrices = {
        "1 iid": np.eye(4),
        "1 other": np.eye(4) - 0.5 * np.eye(4, k=-1),
        "4 iid": np.eye(4),
    }
    shared = NETWORKS["mlp"], parts, matrices
    runs = [boundary_study.one_run(shared, 1.0, 0.9, 0.02, s) for s in (0, 0, 1)]
    assert runs[0] == runs[1] != runs[2]
    assert set(runs[0]["outcomes"]) == {"iid", "other", "no_noise"}


@pytest.mark.parametrize("name", ["frozen.json", "noising.npz"])
def test_a_changed_byte_of_what_was_frozen_is_refused(tmp_path, name):
    folder = Path(shutil.copytree(boundary_study.RESULTS, tmp_path / "boundary"))
    boundary_designs.frozen_design(folder)
    if name == "frozen.json":
        (folder / name).write_text((folder / name).read_text().replace("0.9", "0.8", 1))
    else:
        with np.load(folder / name) as stored:
            matrices = dict(stored)
        matrices["1 dense"][0, 0] += 1e-12
        np.savez_compressed(folder / name, **matrices)
    with pytest.raises(ValueError, match="frozen.sha256"):
        boundary_designs.frozen_design(folder)


def test_tables_by_hand():
    rows = [
        ("1 0", seed, name, loss + 0.01 * seed)
        for seed in range(3)
        for name, loss in (("a", 2.0 + 0.1 * seed), ("dense", 1.8), ("no_noise", 1.6))
    ]
    runs = pd.DataFrame(rows, columns=["condition", "seed", "mechanism", "test_loss"])
    found = boundary_tables.interaction(runs, "a", "dense").loc["ε = 1, μ = 0"]
    gaps = np.array([0.2, 0.3, 0.4])
    assert found["difference"] == pytest.approx(0.3)
    assert found["standard error"] == pytest.approx(gaps.std(ddof=1) / np.sqrt(3))
    assert found["t"] == pytest.approx(0.3 / found["standard error"])
    removed = boundary_tables.noise_cost_removed(runs)["ε = 1, μ = 0"]
    assert removed["dense"] == 0 and removed["a"] == pytest.approx(1 - 0.5 / 0.2)


def test_a_flip_is_resolved_at_both_momenta_with_opposite_signs():
    """a and b change places at budget 1, far apart; a and c never do; budget 4 is noise."""
    place = {"1 0": {"a": 1.0, "b": 2.0, "c": 3.0}, "1 0.9": {"a": 2.0, "b": 1.0, "c": 3.0}}
    place |= {"4 0": dict.fromkeys("abc", 1.0), "4 0.9": dict.fromkeys("abc", 1.0)}
    draw = np.random.default_rng(0)
    rows = [
        (condition, seed, name, loss + 0.01 * draw.normal())
        for condition, means in place.items()
        for seed in range(6)
        for name, loss in means.items()
    ]
    runs = pd.DataFrame(rows, columns=["condition", "seed", "mechanism", "test_loss"])
    found = boundary_tables.flips(runs)
    assert found[["epsilon", "first", "second"]].to_numpy().tolist() == [["1", "a", "b"]]
    wide = runs[runs.condition == "1 0"].pivot(
        index="seed", columns="mechanism", values="test_loss"
    )
    gap = wide["a"] - wide["b"]
    assert found["t at μ = 0"].item() == pytest.approx(gap.mean() / gap.std() * np.sqrt(6))
    assert found["t at μ = 0"].item() < 0 < found["t at μ = 0.9"].item()
    counted = boundary_tables.comparisons(runs).loc["all"]
    assert counted.tolist() == [3, 12, 6, 1, 0]


def test_scores_side_by_side_by_hand():
    agreed = pd.DataFrame(
        {
            "score": ["static", "static", "NoiseCurve (μ = 0)", "NoiseCurve (μ = 0)"],
            "computed": ["before"] * 2 + ["after"] * 2,
            "tau": [0.5, 0.7, 0.2, np.nan],
            "resolved pairs": [0.5, 1.0, 0.5, np.nan],
            "regret %": [1.0, 2.0, 3.0, np.nan],
            "observed / predicted": np.nan,
        }
    )
    table = boundary_tables.side_by_side(agreed)
    assert table.loc["static", "tau"] == "0.60 (0.50 to 0.70)"
    assert table.loc["NoiseCurve (μ = 0)", "tau"] == "void in 1"
    assert table.loc["static", "observed / predicted"] == ""


def test_an_unstable_curvature_makes_a_prediction_void():
    """Stable below 2 (1 + mu): at momentum 0.9 a curvature of 3 is, at momentum 0 it is not."""
    pool = {"iid": Mechanism.from_noising_matrix(np.eye(100))}
    spectra = {"MOMENT-DP": Spectrum([0.5]), "MOMENT-DP after 50": Spectrum([3.0])}
    still = boundary_designs.predictions(pool, spectra, 1.0, 0.0, 0.1).loc["iid"]
    assert np.isnan(still["MOMENT-DP after 50"])
    # theta <- (1 - eta lambda) theta + eta z: the variance of a geometric sum.
    variance = 0.1**2 * (1 - 0.25**100) / (1 - 0.25)
    assert still["MOMENT-DP"] == pytest.approx(0.5 * 0.5 * variance)
    moving = boundary_designs.predictions(pool, spectra, 1.0, 0.9, 0.1).loc["iid"]
    assert moving["MOMENT-DP after 50"] > 0
    assert boundary_designs.as_json(pd.DataFrame({"a": [1.0, np.nan]})) == {"a": {0: 1.0, 1: None}}


def test_the_records_are_complete_and_say_what_the_chapter_says():
    runs = boundary_tables.load_runs()
    assert runs.groupby("condition")["seed"].nunique().tolist() == [20] * 4
    digest = (boundary_study.RESULTS / "frozen.sha256").read_text().strip()
    records = [read_record(path) for path in boundary_study.RESULTS.glob("run-*.json")]
    assert {record["frozen"] for record in records} == {digest}
    t = boundary_tables.interaction(runs, "made_9", "made_0")["t"]
    assert t["ε = 1, μ = 0"] > 5 and t["ε = 1, μ = 0.9"] < -5
    agreed = boundary_tables.agreement(runs)
    scores = agreed.groupby("score")["resolved pairs"].mean()
    final = scores["MOMENT-DP, clipped map, step 10"]
    assert scores["root of final x mean"] > final > scores["static"]
    assert boundary_tables.comparisons(runs).loc["classics"].tolist() == [4, 24, 24, 0, 0]


@pytest.mark.skipif(not CIFAR.exists(), reason="CIFAR-10 is not at hand")
def test_a_committed_record_trains_again_to_the_same_outcome():
    record = read_record(boundary_study.RESULTS / "run-1-0.9-0.json")
    parts = boundary.prepare(load_cifar10(CIFAR))
    with np.load(boundary_study.RESULTS / "noising.npz") as stored:
        matrices = {f"1 {name}": stored[f"1 {name}"] for name in ("made_9", "made_0")}
    shared = NETWORKS["mlp"], parts, matrices
    found = boundary_study.one_run(shared, 1.0, 0.9, 0.05, 0)["outcomes"]
    for name, outcome in found.items():
        expected = record["outcomes"][name]
        assert outcome["test_loss"] == pytest.approx(expected["test_loss"], abs=2e-3)


def test_exchange_is_the_change_of_a_paired_difference():
    rng = np.random.default_rng(0)
    rows = [
        {"condition": c, "seed": s, "mechanism": m, "test_loss": rng.normal()}
        for c in ("1 0", "1 0.9") for s in range(6) for m in ("a", "b")
    ]  # fmt: skip
    found = boundary_tables.exchange(pd.DataFrame(rows), "a", "b").loc["ε = 1"]
    loss = {(r["condition"], r["seed"], r["mechanism"]): r["test_loss"] for r in rows}
    gap = {c: [loss[c, s, "a"] - loss[c, s, "b"] for s in range(6)] for c in ("1 0", "1 0.9")}
    expected = stats.ttest_rel(gap["1 0.9"], gap["1 0"])
    assert found["t"] == pytest.approx(expected.statistic)
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["change"] == pytest.approx(np.mean(gap["1 0.9"]) - np.mean(gap["1 0"]))


def test_the_late_control_trained_as_the_others_did():
    """Its records repeat the run without noise, to the last digit."""
    first, late = boundary_tables.load_runs(), boundary_tables.load_runs(kind="late")
    assert set(late["mechanism"]) == {"flat_9", "no_noise"} and late["seed"].nunique() == 20
    both = [t[t["mechanism"] == "no_noise"].set_index(["condition", "seed"]) for t in (first, late)]
    pd.testing.assert_series_equal(both[0]["test_loss"], both[1]["test_loss"].loc[both[0].index])


def test_designs_without_curvature():
    """Made again from an empty plan it is the frozen one; the late one is the best at its home:
    against designs for neighbouring momenta, by the variance of heavy ball's iterates."""
    plan = dataclasses.replace(boundary_designs.PLANS["mlp"], classics=("iid",), final=())
    spectrum = Spectrum([20.0, 1.0], [1.0, 100.0])
    again = boundary_designs.contestants(plan, [spectrum], 0.05)
    frozen, matrices = boundary_designs.frozen_design(boundary_study.RESULTS)
    assert [*again] == ["iid", "control", "made_0", "made_9"]
    home = Momentum(0.9), spectrum, np.full(100, 0.005)  # the same effective rate
    twin = synthesize(*home, structure="dense", trajectory_weight=1.0).mechanism
    np.testing.assert_allclose(again["made_9"].noising_matrix, twin.noising_matrix, atol=1e-6)
    found = again["control"].noising_matrix
    np.testing.assert_allclose(found, matrices["1 control"], atol=1e-4 * np.abs(found).max())

    reach = np.cumsum(0.9 ** np.arange(100))  # of one unit of noise after so many steps
    G = np.tril(scipy.linalg.toeplitz(reach))

    def cost(noising):
        variance = np.square(G @ noising).sum(axis=1)
        return (variance[-1] + variance.mean()) * np.linalg.norm(
            np.linalg.inv(noising), axis=0
        ).max() ** 2

    late = cost(boundary_study.late_control()["4 flat_9"])
    for momentum in (0.88, 0.92):
        assert late < cost(boundary_designs.made_flat(momentum).noising_matrix)


@pytest.mark.parametrize("momentum", ["0", "0.9"])
def test_tables_along_the_run_are_means_over_seeds(momentum):
    raw, turn = (
        json.loads((boundary_study.RESULTS / f"{name}-{momentum}.json").read_text())["result"]
        for name in ("path", "turn")
    )
    along = boundary_path_tables.damage_along(momentum)
    assert along["predicted"]["dense"].tolist() == raw["predicted"]["dense"]
    for table, name, seeds in (
        (boundary_path_tables.largest_along(), f"clipped map, μ = {momentum}", raw["clipped"]),
        (along["observed"], "dense", raw["observed"]["dense"]),
        (
            boundary_path_tables.final_by_curvature(momentum),
            "dense",
            raw["final_by_curvature"]["dense"],
        ),
        (boundary_path_tables.turned(), f"μ = {momentum}", turn["share"]),
    ):
        first, second = seeds
        expected = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        assert table[name].tolist() == pytest.approx(expected)
