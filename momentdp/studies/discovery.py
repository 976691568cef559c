"""The discovery grid of Appendix D, evaluated in one vectorised pass, and the reversals in it.

Step sizes, momenta, schedules, spectra and the catalogue are named axes of one data set, in the
three arms of :mod:`momentdp.studies.crossovers`. No mechanism of the grid changes with the momentum
that it is tried at, so that a reversal along that axis is the optimizer's and not a redesign's.
"""

import itertools
import sys
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from momentdp._checks import refuse
from momentdp.dynamics import schedules, spectra
from momentdp.evaluation.scores import STABLE_EL
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies.crossovers import ARMS, batched_transfers, condition

GRID = Path(__file__).resolve().parents[2] / "results" / "crossovers" / "grid.nc"
STEPS, DESIGN_MOMENTUM = 128, 0.9
# The catalogue by what each construction looks at. `sqrt` is `lr_aware_sqrt` to the bit, and left
# out; a NoiseCurve looks at spectrum and peak rate; what is made for a momentum is made for 0.9.
LOOKS_AT = {
    **dict.fromkeys(("iid", "dense", "dense_jax_privacy", "bandmf_mean", "bandmf_max"), ()),
    **dict.fromkeys(("toeplitz_mean", "toeplitz_max", "bandinv_mean", "bandinv_max"), ()),
    **dict.fromkeys(("bisr", "lr_aware_sqrt", "nsr", "momentum_bisr"), ()),
    **dict.fromkeys(("lr_aware_toeplitz", "lr_aware_opt", "momentum_dense"), ("schedule",)),
    **dict.fromkeys(("noisecurve", "noisecurve_floor", "noisecurve_adam"), ("el", "spectrum")),
}
AXES = {
    "el": [0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8],
    "momentum": [0.0, 0.5, 0.8, 0.9, 0.95, 0.99],
    "schedule": list(schedules.FAMILIES),
    "spectrum": list(spectra.BOOK),
}


def axes(**changed) -> dict[str, list]:
    """The paper's axes, some of them cut or exchanged."""
    unknown = sorted(changed.keys() - AXES.keys())
    if unknown:
        raise refuse("axes", ", ".join(unknown), f"use {', '.join(AXES)}")
    return AXES | {name: list(values) for name, values in changed.items()}


def modes(spectrum: spectra.Spectrum) -> Float[np.ndarray, " d"]:
    """Every eigenvalue as often as it occurs."""
    return np.repeat(spectrum.eigenvalues, spectrum.multiplicities.astype(int))


def construct(name: str, *, el=None, schedule=None, spectrum=None) -> Mechanism:
    """A mechanism of the grid, made for its home; axes that its construction ignores are unused."""
    given = {"momentum": DESIGN_MOMENTUM} if name.startswith("momentum") else {}
    if "spectrum" in LOOKS_AT[name]:
        given["spectrum"] = spectra.BOOK[spectrum]
        given["learning_rates"] = schedules.constant(STEPS, el / given["spectrum"].largest)
    elif "schedule" in LOOKS_AT[name]:
        given["learning_rates"] = schedules.FAMILIES[schedule](STEPS, 1.0)
    return catalogue(STEPS, pool=[name], **given)[name]


def noising_matrices(grid=AXES, names=tuple(LOOKS_AT)) -> dict[str, xr.DataArray]:
    """C^-1 of each mechanism: (axes that its construction looks at, step, column)."""
    found = {}
    for name in names:
        own = {axis: grid[axis] for axis in LOOKS_AT[name]}
        matrices = []
        for values in itertools.product(*own.values()):
            if sys.stderr.isatty():
                print(f"\r\033[K{name} {values or ''}", end="", file=sys.stderr)
            made = construct(name, **dict(zip(own, values, strict=True)))
            matrices.append(made.noising_matrix)
        shape = (*map(len, own.values()), STEPS, STEPS)
        found[name] = xr.DataArray(np.reshape(matrices, shape), own, dims=(*own, "step", "column"))
    return found


def transfers(arm: str, grid=AXES) -> xr.DataArray:
    """sqrt(lambda_i) g_i[t] of every condition of an arm: (el, momentum, schedule, spectrum, mode,
    step). Every spectrum of the book has lambda_max = 1, so that a rate is its el."""
    curvature = np.array([modes(spectra.BOOK[name]) for name in grid["spectrum"]])
    shapes = np.array([schedules.FAMILIES[name](STEPS, 1.0) for name in grid["schedule"]])
    runs = [condition(arm, mu, el) for el, mu in itertools.product(grid["el"], grid["momentum"])]
    momenta, peaks = np.array(runs).T
    rates = (peaks[:, None, None] * shapes).reshape(-1, STEPS)
    with jax.enable_x64(True):
        every = np.broadcast_to(curvature.ravel(), (len(rates), curvature.size))
        g = np.asarray(batched_transfers(np.repeat(momenta, len(shapes)), rates, every))
    g = g.reshape(*map(len, grid.values()), curvature.shape[1], STEPS)
    return xr.DataArray(g * np.sqrt(curvature)[..., None], grid, dims=(*grid, "mode", "step"))


def lagged(grid=AXES) -> xr.DataArray:
    """A model of arm (b): the transfers without momentum, handed on by a buffer that keeps a share
    mu at each step. What curvature makes of that delay is left out."""
    plain = transfers("a", grid | {"momentum": [0.0]}).isel(momentum=0, drop=True)
    found = plain.expand_dims(momentum=grid["momentum"]).transpose(*grid, "mode", "step").copy()
    keep = found.momentum
    found[{"step": -1}] = (1 - keep) * found[{"step": -1}]
    for t in range(STEPS - 2, -1, -1):
        found[{"step": t}] = (1 - keep) * found[{"step": t}] + keep * found[{"step": t + 1}]
    return found


def contract(g: xr.DataArray, noising: dict[str, xr.DataArray]) -> xr.DataArray:
    """(1/2) sum_i |C^-T sqrt(lambda_i) g_i|^2: the axes of the conditions, mechanism.

    Momenta are kept with the modes for the product, since no mechanism depends on them.
    """
    rows = g.stack(row=("momentum", "mode"), create_index=False)
    found = []
    for matrices in noising.values():
        response = xr.apply_ufunc(
            np.matmul,
            rows,
            matrices,
            input_core_dims=[["row", "step"], ["step", "column"]],
            output_core_dims=[["row", "column"]],
        )
        sizes = {"momentum": g.sizes["momentum"], "mode": g.sizes["mode"]}
        each = 0.5 * (response**2).sum("column")
        each = each.drop_vars(["momentum", "mode"], errors="ignore")
        found.append(each.coarsen(row=sizes["mode"]).sum().rename(row="momentum"))
    damage = xr.concat(found, xr.Variable("mechanism", list(noising)), coords="minimal")
    damage = damage.assign_coords(momentum=g.momentum)
    return damage.transpose(*(axis for axis in g.dims if axis in damage.dims), "mechanism")


def evaluate(noising: dict[str, xr.DataArray], grid=AXES, arms=tuple(ARMS)) -> xr.Dataset:
    """Damage at unit noise multiplier: ``damage`` (arm, el, momentum, schedule, spectrum, mechanism),
    and ``lagged``, what the model of :func:`lagged` makes of arm (b)."""
    found = [contract(transfers(arm, grid), noising) for arm in arms]
    damage = xr.concat(found, xr.Variable("arm", list(arms)))
    return xr.Dataset({"damage": damage, "lagged": contract(lagged(grid), noising)})


def reversals(damage: xr.DataArray, names) -> xr.Dataset:
    """Pairs that exchange places between mu = 0 and each momentum, the rest of the arm kept.

    ``native``: how far the one that leads at mu = 0 leads there; ``margin``: how far it is behind
    at the momentum, below zero while it leads; both relative to the better one. ``leads``: the pair's
    first name leads at mu = 0. A score without momentum is wrong at one end wherever margin > 0.
    """
    first, second = np.triu_indices(len(names), 1)
    logs = np.log(damage.sel(mechanism=list(names)))
    left, right = (
        logs.isel(mechanism=xr.DataArray(places, dims="pair")).drop_vars("mechanism")
        for places in (first, second)
    )
    gap = left - right
    native, gap = gap.sel(momentum=0.0, drop=True), gap.sel(momentum=gap.momentum > 0)
    margin = -np.sign(native * gap) * np.expm1(abs(gap))
    pairs = [f"{names[i]}, {names[j]}" for i, j in zip(first, second, strict=True)]
    found = {"native": np.expm1(abs(native)), "margin": margin, "leads": native < 0}
    return xr.Dataset(found).assign_coords(pair=pairs)


def strength(reversals: xr.Dataset) -> xr.DataArray:
    """The smaller one of the two margins of a reversal."""
    return np.minimum(reversals.native, reversals.margin)


def causes(reversals: xr.Dataset, threshold: float) -> dict[str, float]:
    """What is enough for a reversal of arm (a) whose two margins exceed a threshold, in shares:
    state (the pair reverses in arm (b) too), the longer step (in arm (c)), either one of them, or
    only both together. Left out are conditions whose step arm (c) cannot take."""
    taken = reversals.el / (1 - reversals.momentum) <= STABLE_EL
    strong = (strength(reversals) > threshold).sel(arm="a") & taken
    state, step = (strong & (reversals.margin.sel(arm=arm) > 0) for arm in ("b", "c"))
    found = {
        "state alone": state & ~step,
        "step alone": step & ~state,
        "either": state & step,
        "only both": strong & ~state & ~step,
    }
    return {name: (part.sum() / strong.sum()).item() for name, part in found.items()}


def staying(damage: xr.DataArray, names) -> xr.DataArray:
    """What it costs, relative to the best of ``names`` at each momentum, to keep the mechanism
    that is the best one at mu = 0."""
    pool = damage.sel(mechanism=list(names))
    home = pool.sel(momentum=0.0, drop=True).idxmin("mechanism")
    moved = pool.sel(momentum=pool.momentum > 0)
    return moved.sel(mechanism=home).drop_vars("mechanism") / moved.min("mechanism") - 1


def staying_costs(damage: xr.DataArray, pools: dict, threshold: float) -> pd.DataFrame:
    """What :func:`staying` costs, a row a pool and arm, in percent: share of the conditions where it
    is more than a threshold, mean and median."""
    rows = {}
    for (pool, members), arm in itertools.product(pools.items(), damage.arm.to_numpy()):
        cost = 100 * staying(damage.sel(arm=arm), members)
        rows[pool, f"arm ({arm})"] = {
            "costly (%)": 100 * (cost > 100 * threshold).mean().item(),
            "mean (%)": cost.mean().item(),
            "median (%)": cost.median().item(),
        }
    return pd.DataFrame(rows).T


def exchanges(damage: xr.DataArray, names, threshold: float) -> pd.DataFrame:
    """Pairs, those that reverse most often first: in how many conditions of one arm they do so by
    more than a threshold, and the largest margin."""
    margin = strength(reversals(damage, names))
    over = [axis for axis in margin.dims if axis != "pair"]
    often = (margin > threshold).sum(over).to_series().sort_values(ascending=False)
    largest = margin.max(over).to_series()[often.index]
    return pd.DataFrame({"conditions": often, "largest margin": largest})


def explained_by_lag(
    grid: xr.Dataset, names, threshold: float
) -> tuple[pd.DataFrame, float, float]:
    """Reversals of arm (b) by more than a threshold against the model of :func:`lagged`.

    Returns:
        Step sizes as columns: how many there are, and how many of them the model has (%); that
        share over all; and the share of the model's own, by that threshold, which are real.
    """
    real = strength(reversals(grid.damage.sel(arm="b"), names)) > threshold
    model = reversals(grid.lagged, names)
    said, strict = real & (model.margin > 0), strength(model) > threshold
    over = [axis for axis in real.dims if axis != "el"]
    share = 100 * said.sum(over) / real.sum(over)
    table = {"reversals": real.sum(over).to_series(), "predicted (%)": share.to_series()}
    whole = [(said.sum() / real.sum()).item(), ((strict & real).sum() / strict.sum()).item()]
    return pd.DataFrame(table).T, *whole


def load(path: Path = GRID) -> xr.Dataset:
    """The committed grid: single precision, as it is read and never decided upon."""
    with xr.open_dataset(path, engine="scipy") as grid:
        return grid.load()
