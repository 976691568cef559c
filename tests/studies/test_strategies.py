"""The committed strategies against fresh runs of the optimisers that made them."""

import numpy as np
import pytest

import momentdp as mdp
from momentdp.damage import quadratic_factor
from momentdp.mechanisms import store
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies import crossovers, strategies

# A member of each kind of optimiser; the rest of the archive comes from the same functions.
REBUILT = {
    "certified dense": lambda: catalogue(32, pool=["dense"]),
    "jax-privacy banded": lambda: catalogue(8, pool=["bandmf_mean"]),
    "jax-privacy Toeplitz": lambda: catalogue(32, pool=["toeplitz_max"]),
    "inverse banded": lambda: catalogue(128, pool=["bandinv_mean", "bandinv_max"]),
}


@pytest.mark.parametrize("make", REBUILT.values(), ids=REBUILT)
def test_a_rebuilt_strategy_is_the_committed_one(make, monkeypatch, tmp_path):
    committed = make()
    monkeypatch.setenv(store.REBUILD, "1")
    monkeypatch.setenv(store.CACHE, str(tmp_path))
    rebuilt = make()
    assert len(list(tmp_path.glob("*.npz"))) == len(rebuilt), "the committed ones were read"
    for name, m in rebuilt.items():
        np.testing.assert_allclose(
            m.strategy_matrix, committed[name].strategy_matrix, atol=1e-4, err_msg=name
        )


def test_a_rebuilt_noisecurve_is_as_good_as_the_committed_one(monkeypatch, tmp_path):
    """Near its optimum P1 is flat: the matrices agree to few digits, the objective to many."""
    rates, spectrum = np.full(128, 0.2), mdp.spectra.log_spaced(16, 10.0)
    Q = quadratic_factor(mdp.Momentum(0.0), spectrum, rates)
    Q = Q @ Q.T
    Q += 1e-3 * np.trace(Q) / 128 * np.eye(128)

    def objective():
        (m,) = crossovers.native_pool(0.2, 10.0, pool=["noisecurve"]).values()
        return np.trace(m.noising_matrix.T @ Q @ m.noising_matrix)

    committed = objective()
    monkeypatch.setenv(store.REBUILD, "1")
    monkeypatch.setenv(store.CACHE, str(tmp_path))
    assert objective() == pytest.approx(committed, rel=3e-6)
    assert len(list(tmp_path.glob("*.npz"))) == 1


def test_bundling_is_reproducible_and_resumes(monkeypatch, tmp_path):
    few = [("bisr needs no optimiser", lambda: catalogue(8, pool=["bisr"]))]
    few += [("toeplitz", lambda: catalogue(8, pool=["toeplitz_mean"]))]
    monkeypatch.setattr(strategies, "recipes", lambda: iter(few))
    monkeypatch.setattr(strategies.os, "environ", dict(strategies.os.environ))
    monkeypatch.setattr(store.os, "environ", strategies.os.environ)
    first = strategies.build(tmp_path / "parts", tmp_path / "frozen.npz")
    (part,) = (tmp_path / "parts").iterdir()
    stamp = part.stat().st_mtime_ns
    assert strategies.build(tmp_path / "parts", tmp_path / "frozen.npz") == first
    assert part.stat().st_mtime_ns == stamp, "a part that was there was built again"
    assert (tmp_path / "frozen.sha256").read_text().split() == [first, "frozen.npz"]
