"""Curvature along the CNN study's runs: moments of the Hessian, and damages by the recurrence."""

from pathlib import Path

import cnn_tiny
import jax
import numpy as np
import pandas as pd
import pytest

from momentdp import cli
from momentdp.studies import cnn_command, cnn_curvature, cnn_study, records
from momentdp.studies.cnn import hessian_vector_product, source_key, train
from momentdp.studies.images import digits_images, load_cifar10
from momentdp.studies.network import Network

CIFAR = Path(__file__).resolve().parents[3] / "shared" / "data" / "cifar10-jpeg.tar.xz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny study with its curvatures along momentum and the cosine."""
    out = tmp_path_factory.mktemp("curvatures")
    cnn_tiny.run_tiny(out)
    settings, images = cnn_tiny.SETTINGS, digits_images()
    how = {"condition": "momentum_cosine", "seeds": (0,)}
    cnn_curvature.run_curvatures(settings, images, out, **how)
    return out


def test_moments_of_the_nodes_are_those_of_the_hessian(folder):
    """Of degree 0 to 3, over the same probes: what Gauss' quadrature has exact."""
    settings, images = cnn_tiny.SETTINGS, digits_images()
    known = records.read_record(folder / "calibration.0.json")
    arguments = cnn_study.prepared(
        (settings, images), 0, "momentum_cosine", np.zeros((4, 4)), known
    )
    end = train(**arguments).parameters
    public = settings.split(images)["calibration"][: settings.curvature_examples]
    pixels, labels = images.pixels[public], images.labels[public].astype(np.int32)
    product = jax.jit(hessian_vector_product(arguments["network"], end, pixels, labels))
    moments = np.zeros(4)
    for key in jax.random.split(source_key("curvature", 0), cnn_curvature.PROBES):
        probe = np.asarray(jax.random.rademacher(key, (len(end),), np.float32))
        once = np.asarray(product(probe))
        moments += [probe @ probe, probe @ once, once @ once, once @ np.asarray(product(once))]
    record = records.read_record(folder / "curvature.0.json")
    assert record["places"] == [0, 2, 4]
    nodes, weights = (np.array(record["curvatures"][-1][key]) for key in ("nodes", "weights"))
    found = [(weights * nodes**k).sum() for k in range(4)]
    np.testing.assert_allclose(found, moments / cnn_curvature.PROBES, rtol=1e-3)


def test_damage_by_the_recurrence_of_heavy_ball(folder):
    record = records.read_record(folder / "curvature.0.json")
    known = records.read_record(folder / "calibration.0.json")
    nodes, weights = (np.array(record["curvatures"][0][key]) for key in ("nodes", "weights"))
    rates = cnn_study.schedules.FAMILIES["cosine"](4, record["learning_rate"])
    squares = np.zeros_like(nodes)
    for first in range(4):  # a unit impulse of noise at each step
        error, velocity = np.zeros_like(nodes), np.zeros_like(nodes)
        for step in range(4):
            velocity = 0.9 * velocity + nodes * error + (step == first)
            error = error - rates[step] * velocity
        squares += error**2
    scale = record["noise_multiplier"] * known["clip_norm"] / 10
    shares = 0.5 * scale**2 * weights * nodes * squares
    found = cnn_curvature.damage_by_curvature(folder=folder).loc[0, 0]
    above = shares * (nodes > 0)
    assert found["above zero"] == pytest.approx(above.sum(), rel=1e-9)
    assert found["below zero"] == pytest.approx((shares - above).sum(), rel=1e-9)
    assert nodes.min() == found["most negative"] < 0 < nodes.max() == found["largest"]
    assert found["trace"] == pytest.approx((weights * nodes).sum(), rel=1e-12)
    expected = (len(nodes) * above.sum(axis=1)).std(ddof=1) / np.sqrt(len(nodes))
    assert found["above SE"] == pytest.approx(expected, rel=1e-9)
    lowest = squares.ravel()[nodes.argmin()]
    assert found["growth"] == pytest.approx(np.sqrt(lowest / error_without_curvature(rates)))


def error_without_curvature(rates):
    """Sum over the steps of the squared movement by a unit impulse there."""
    total = 0.0
    for first in range(len(rates)):
        total += sum(rate * 0.9**lag for lag, rate in enumerate(rates[first:])) ** 2
    return total


def test_summary_by_hand():
    places = pd.MultiIndex.from_product([[0, 1], [0, 50, 100]], names=["seed", "step"])
    names = ["largest", "most negative", "growth", "above zero", "below zero", "trace SE"]
    rows = [
        [100, -20, 4e5, 1.0, -9.0, 7.0], [50, -2, 3.0, 0.5, -2.5, 1.0], [200, -4, 9, 2, -3, 50],
        [80, -8, 2e4, 0.2, -3.2, 8.0], [8, -4, 2.0, 0.1, -0.3, 90.0], [40, -1, 3, 2, -3, 60],
    ]  # fmt: skip
    found = cnn_curvature.summary(pd.DataFrame(rows, places, names))
    expected = {"growth": 1e4, "negative": 15, "calmer": 30, "calmer_below": 30, "back_least": 50,
                "back_most": 200, "first_gain": 3, "half_gain": 0.2, "half_gain_most": 2,
                "half_least": 0.1, "half_most": 0.5, "trace_error": 8}  # fmt: skip
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_command_asks_for_what_the_line_says(folder, tmp_path, monkeypatch, capsys):
    asked = {}

    def run_curvatures(settings, images, out, **how):
        asked.update(settings=settings, out=out, **how)

    monkeypatch.setattr(cnn_command, "run_curvatures", run_curvatures)
    for file in folder.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    line = f"study cnn --data digits --out {tmp_path} --steps 4 --seeds 2 --curvatures"
    assert cli.main([*line.split(), "--conditions", "momentum_cosine"]) == 0
    assert asked["condition"] == "momentum_cosine" and asked["seeds"] == (0, 1)
    assert asked["settings"].steps == 4 and asked["out"] == tmp_path
    assert "most negative" in capsys.readouterr().out
    assert "curvature.0.json" in records.read_manifest(tmp_path)["sha256"]


def test_without_a_calibration_it_says_what_to_run(tmp_path):
    with pytest.raises(ValueError, match="out: got .* without calibration.0.json; run the study"):
        cnn_curvature.run_curvatures(
            cnn_tiny.SETTINGS, digits_images(), tmp_path, condition="momentum_cosine", seeds=(0,)
        )


@pytest.mark.skipif(not CIFAR.exists(), reason="needs the shared copy of CIFAR-10")
def test_a_committed_record_comes_back():
    """One probe at one start: two moments of its nodes by two products with the Hessian."""
    record = records.read_record(cnn_curvature.RESULTS / "curvature.3.json")
    images, settings, network = load_cifar10(CIFAR), cnn_study.StudySettings(), Network()
    assert images.sha256 == record["data_sha256"]
    public = settings.split(images)["calibration"][: settings.curvature_examples]
    start = network.init(source_key("initialisation", 3))
    labels = images.labels[public].astype(np.int32)
    product = hessian_vector_product(network, start, images.pixels[public], labels)
    key = jax.random.split(source_key("curvature", 3), cnn_curvature.PROBES)[0]
    probe = np.asarray(jax.random.rademacher(key, (len(start),), np.float32))
    once = np.asarray(jax.jit(product)(probe), np.float64)
    found = record["curvatures"][0]
    nodes, weights = (
        np.array(found["nodes"][0]),
        len(found["nodes"]) * np.array(found["weights"][0]),
    )
    assert (weights * nodes**2).sum() == pytest.approx(once @ once, rel=1e-3)
    assert (weights * nodes).sum() == pytest.approx(probe @ once, rel=1e-3)
