"""The vectorised grid against the literal formula, the stored one against a live part of it."""

import numpy as np
import pytest
import xarray as xr

from momentdp.dynamics import literal, schedules, spectra
from momentdp.studies import crossovers, discovery, registry

NAMES = ("iid", "dense", "bandmf_max", "bisr", "lr_aware_toeplitz", "nsr")
# Axes as Appendix D prints them.
EL = [0.0025, 0.005, 0.01, 0.02, 0.05, 0.10, 0.20, 0.40, 0.60, 0.80]
MOMENTA = [0, 0.5, 0.8, 0.9, 0.95, 0.99]
FAMILIES = ["constant", "warmup_constant", "cosine", "warmup_cosine", "step_decay"]
FAMILIES += ["exponential_decay", "front_loaded", "back_loaded"]


@pytest.fixture(scope="module")
def stored():
    return discovery.load().damage


@pytest.fixture(scope="module")
def part():
    """Two step sizes, all momenta, all schedules, two spectra, six mechanisms, three arms."""
    grid = discovery.axes(el=[0.02, 0.4], spectrum=["spike", "log-spaced, kappa 100"])
    return discovery.evaluate(discovery.noising_matrices(grid, NAMES), grid).damage


def test_the_grid_is_the_papers(stored):
    assert stored.dims == ("arm", "el", "momentum", "schedule", "spectrum", "mechanism")
    assert stored.el.to_numpy().tolist() == EL
    assert stored.momentum.to_numpy().tolist() == MOMENTA
    assert stored.schedule.to_numpy().tolist() == FAMILIES
    assert stored.sizes["spectrum"] == 6
    assert all(len(discovery.modes(spectra.BOOK[name])) == 16 for name in stored.spectrum.values)
    assert np.isfinite(stored).all() and (stored > 0).all()


@pytest.mark.parametrize(
    ("arm", "momentum", "trained", "peak"),
    [("a", 0.95, 0.95, 0.4), ("b", 0.95, 0.95, 0.02), ("c", 0.95, 0.0, 1.9)],
)
@pytest.mark.parametrize("schedule", ["warmup_cosine", "back_loaded"])
def test_places_of_the_grid_by_the_literal_formula(part, arm, momentum, trained, peak, schedule):
    """Full matrices in a rotated basis; what an arm trains with is typed."""
    where = {"arm": arm, "el": 0.4, "momentum": momentum, "schedule": schedule, "spectrum": "spike"}
    rates = schedules.FAMILIES[schedule](128, peak)
    H = literal.rotated(np.r_[np.full(15, 0.01), 1.0], seed=1)
    for name in ("iid", "lr_aware_toeplitz"):
        m = discovery.construct(name, schedule=schedule)
        inverse = np.linalg.inv(m.strategy_matrix)
        expected = literal.damage(H, trained, rates, inverse @ inverse.T)
        assert part.sel(where | {"mechanism": name}).item() == pytest.approx(expected, rel=1e-9)


def test_the_stored_grid_is_this_codes(part, stored):
    there = stored.sel({axis: part[axis] for axis in part.dims})
    np.testing.assert_allclose(there, part, rtol=1e-6)  # it is stored in single precision


def test_noisecurve_is_made_for_its_own_place(stored):
    """In its own place (mu = 0, constant rate, its step and spectrum) no strategy of its class, 16
    bands and unit columns, beats the solution of P1; its regularised form by 3% at most."""
    home = stored.sel(arm="a", momentum=0.0, schedule="constant")
    banded = ["iid", "bandmf_mean", "bandmf_max", "toeplitz_mean", "toeplitz_max"]
    best = home.sel(mechanism=banded).min("mechanism")
    assert (home.sel(mechanism="noisecurve_floor") / best).max() < 1.0005
    assert (home.sel(mechanism="noisecurve") / best).max() < 1.03
    there = crossovers.native_pool(0.4, 10.0, pool=["noisecurve"])["noisecurve"]
    made = discovery.construct("noisecurve", el=0.4, spectrum="log-spaced, kappa 10")
    np.testing.assert_array_equal(made.strategy_matrix, there.strategy_matrix)


def tiny(values):
    """Damage of two mechanisms at momenta 0, .5, .9 in one condition."""
    coords = {"momentum": [0.0, 0.5, 0.9], "mechanism": ["x", "y"]}
    return xr.DataArray(values, coords, dims=("momentum", "mechanism"))


def test_reversals_by_hand():
    found = discovery.reversals(tiny([[1.0, 1.2], [1.0, 1.5], [3.0, 2.0]]), ("x", "y"))
    assert found.pair.item() == "x, y"
    assert found.leads.item() is True
    assert found.native.item() == pytest.approx(0.2)
    np.testing.assert_allclose(found.margin.squeeze(), [-0.5, 0.5])
    swapped = discovery.reversals(tiny([[1.2, 1.0], [1.5, 1.0], [2.0, 3.0]]), ("x", "y"))
    assert swapped.leads.item() is False
    np.testing.assert_allclose(swapped.margin, found.margin)


def test_staying_by_hand():
    cost = discovery.staying(tiny([[1.0, 1.2], [1.0, 1.5], [3.0, 2.0]]), ("x", "y"))
    np.testing.assert_allclose(cost, [0.0, 0.5])


def test_costs_and_exchanges_by_hand():
    """x is left at 0.9, where it costs half as much again; the pair reverses there only."""
    damage = tiny([[1.0, 1.2], [1.0, 1.5], [3.0, 2.0]])
    arms = damage.expand_dims(arm=["a"])
    costs = discovery.staying_costs(arms, {"both": ("x", "y")}, 0.2)
    np.testing.assert_allclose(costs.loc[("both", "arm (a)")], [50, 25, 25])
    found = discovery.exchanges(damage, ("y", "x"), 0.1)
    assert found.loc["y, x", "conditions"] == 1
    assert found.loc["y, x", "largest margin"] == pytest.approx(0.2)  # that of momentum zero


def test_causes_by_hand():
    """Three pairs reverse in arm (a): one also in (b), one also in (c), one in neither; a step of
    0.4 / (1 - 0.9) is too long for arm (c), and not counted."""
    shape = (3, 2, 2, 3)  # arm, el, momentum, pair
    margin = np.full(shape, -0.5)
    margin[0] = 0.5
    margin[1, ..., 0] = margin[2, ..., 1] = 0.5
    coords = {"arm": ["a", "b", "c"], "el": [0.1, 0.4], "momentum": [0.5, 0.9]}
    margin = xr.DataArray(margin, coords, dims=("arm", "el", "momentum", "pair"))
    margin[{"el": 1, "momentum": 1, "arm": slice(1, 3)}] = -0.5
    found = discovery.causes(xr.Dataset({"margin": margin, "native": abs(margin)}), 0.1)
    third = pytest.approx(1 / 3)
    assert found == {"state alone": third, "step alone": third, "either": 0, "only both": third}


def test_printed_rows_by_hand():
    names = [*crossovers.PAPER[:10], "noisecurve"]
    damage = np.ones((5, len(names)))
    damage[0, -1] = damage[1:3, 1] = damage[3, 2] = damage[4, 1] = 0.5  # row 4 goes to another one
    coords = {"momentum": list(crossovers.MOMENTA), "mechanism": names}
    array = xr.DataArray(damage, coords, dims=("momentum", "mechanism"))
    array = array.expand_dims(arm=["a"], schedule=["constant"])
    assert crossovers.printed_rows(array).item() == 4


def test_the_lag_is_the_whole_effect_where_curvature_is_small():
    """With no curvature the transfer at mu is (1 - mu^(T-t)) / (1 - mu) eta: the buffer that has not
    yet been emptied. The model is exact there, and its damage goes to arm (b)'s as el goes to 0."""
    grid = discovery.axes(el=[1e-6], schedule=["constant", "step_decay"], spectrum=["isotropic"])
    lag, exact = discovery.lagged(grid), discovery.transfers("b", grid)
    np.testing.assert_allclose(lag, exact, rtol=2e-3)
    mu, eta = 0.9, 1e-6
    closed = -eta * (1 - mu ** (128 - np.arange(128)))
    found = lag.sel(momentum=mu, schedule="constant").isel(mode=0).squeeze()
    np.testing.assert_allclose(found, closed, rtol=1e-3)


def test_most_reversals_of_state_are_the_buffers_lag(part, stored):
    """In the whole grid; the model itself is checked live on a part of it."""
    whole = discovery.load()
    there = whole.lagged.sel({axis: part[axis] for axis in part.dims if axis != "arm"})
    grid = discovery.axes(el=[0.02, 0.4], spectrum=["spike", "log-spaced, kappa 100"])
    live = discovery.contract(discovery.lagged(grid), discovery.noising_matrices(grid, NAMES))
    np.testing.assert_allclose(there, live, rtol=1e-6)
    names = registry.COMPETITORS
    true = discovery.reversals(stored.sel(arm="b"), names)
    table, share, precise = discovery.explained_by_lag(whole, names, 0.1)
    assert share == pytest.approx(0.947, abs=2e-3) and precise == pytest.approx(0.90, abs=0.01)
    count = int(((true.margin > 0.1) & (true.native > 0.1)).sum())
    assert table.loc["reversals"].sum() == count
    assert table.prod().sum() == pytest.approx(100 * share * count)
    assert ((true.margin > 0.1) & (true.native > 0.1)).sel(schedule="cosine").sum() < 100


def test_an_unknown_axis_is_refused():
    with pytest.raises(ValueError, match="axes: got momenta; use el, momentum, schedule"):
        discovery.axes(momenta=[0.5])
