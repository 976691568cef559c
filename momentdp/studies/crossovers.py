"""The NoiseCurve intervention (paper 3.2): Table 1 and Fig. 1b in three arms.

The paper holds eta and changes mu, which also multiplies the effective step eta / (1 - mu). The
arms tell both apart: (a) eta fixed; (b) eta (1 - mu) fixed, the effective step of mu = 0 kept;
(c) no momentum, only eta raised to that of arm (a), eta lambda_max capped at 1.9.
"""

import jax
import numpy as np
import pandas as pd
from jaxtyping import Array, Float
from scipy.optimize import brentq

from momentdp._checks import number, refuse
from momentdp.damage import damage_curve
from momentdp.dynamics import core, schedules, spectra
from momentdp.dynamics.core import AnyArray
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation.rank import rank
from momentdp.evaluation.scores import STABLE_EL
from momentdp.mechanisms.catalogue import PAPER, catalogue

MOMENTA = (0.0, 0.5, 0.8, 0.9, 0.95)
SLICE_MOMENTA = (0.0, 0.5, 0.9, 0.95)
ARMS = {
    "a": "eta fixed, momentum changed",
    "b": "eta / (1 - mu) fixed, momentum changed",
    "c": "no momentum, eta as large as arm a's eta / (1 - mu)",
}
BATCH = 32  # runs that are compiled together
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
NOISECURVES = ("noisecurve", "noisecurve_floor", "noisecurve_adam")


def condition(arm: str, momentum: float, el: float) -> tuple[float, float]:
    """(momentum, eta lambda_max) that an arm trains with when its nominal momentum is given."""
    mu = number("momentum", momentum, 0.0, 1.0)
    el = number("el", el, 0.0, STABLE_EL + 1e-9, open_low=True)
    if arm not in ARMS:
        raise refuse("arm", repr(arm), f"pass one of {', '.join(ARMS)}")
    if arm == "a":
        return mu, el
    return (mu, el * (1 - mu)) if arm == "b" else (0.0, min(el / (1 - mu), STABLE_EL))


def native_pool(el: float, kappa: float, steps: int = 128, bands: int = 16, pool=None) -> dict:
    """The catalogue, with every NoiseCurve optimised once where it is at home: mu = 0, eta."""
    spectrum = spectra.log_spaced(16, kappa)
    rates = schedules.constant(steps, el / spectrum.largest)
    names = tuple(PAPER) + NOISECURVES[1:] if pool is None else pool
    return catalogue(steps, bands=bands, learning_rates=rates, spectrum=spectrum, pool=names)


@jax.jit
@jax.vmap
def batched_transfers(
    momentum: Float[AnyArray, ""],
    learning_rates: Float[AnyArray, " steps"],
    eigenvalues: Float[AnyArray, " modes"],
) -> Float[Array, "modes steps"]:
    """g_i of many runs at once: each argument gets a leading axis of runs. Heavy ball."""
    system = core.momentum_system(learning_rates, momentum, False, 0.0, 0.0)
    return core.transfer(system, eigenvalues)


def batched_damages(mechanisms: dict, runs) -> Float[np.ndarray, "runs mechanisms"]:
    """D_dyn at unit noise of every mechanism in every run, in one pass.

    Args:
        mechanisms: name -> Mechanism, of sensitivity 1.
        runs: (momentum, (steps,) rates, (modes,) eigenvalues of multiplicity 1) of each.
    """
    runs = list(runs)
    # Batches of one size or few, since each size is compiled for a second.
    padded = runs + runs[:1] * (-len(runs) % BATCH)
    momenta, rates, eigenvalues = (np.array(part) for part in zip(*padded, strict=True))
    with jax.enable_x64(True):
        g = np.asarray(batched_transfers(momenta, rates, eigenvalues))
    rows = (g * np.sqrt(eigenvalues)[..., None])[: len(runs)].reshape(-1, g.shape[-1])
    found = [np.square(rows @ m.noising_matrix).sum(axis=1) for m in mechanisms.values()]
    return 0.5 * np.array(found).reshape(len(found), len(runs), -1).sum(axis=-1).T


def damages(
    mechanisms: dict,
    arm: str,
    el: float,
    kappa: float,
    momenta=MOMENTA,
    *,
    schedule: str = "constant",
    forward: bool = False,
) -> pd.DataFrame:
    """Damage (unit noise multiplier) of each mechanism (columns) at each momentum (rows).

    ``schedule`` is a key of ``schedules.FAMILIES``, ``el`` its peak. The adjoint is sent back from
    the final error; ``forward`` sends the noise forward, step by step, which makes an oracle that
    shares no step with it.
    """
    spectrum = spectra.log_spaced(16, kappa)
    steps = next(iter(mechanisms.values())).steps
    runs = []
    for nominal in momenta:
        mu, step_size = condition(arm, nominal, el)
        rates = schedules.FAMILIES[schedule](steps, step_size / spectrum.largest)
        runs.append((mu, rates, spectrum.eigenvalues))
    if forward:
        found = [[forward_damage(m, *run) for m in mechanisms.values()] for run in runs]
    else:
        found = batched_damages(mechanisms, runs)
    index = pd.Index(momenta, name="momentum")
    return pd.DataFrame(found, index, list(mechanisms))


def forward_damage(m, momentum: float, rates, eigenvalues) -> float:
    """D_dyn by running the noise through the optimizer, step by step."""
    return float(damage_curve(m, Momentum(momentum), eigenvalues, rates)[-1])


def against(mechanisms: dict, noisecurve: str) -> dict:
    """The pool with one of the NoiseCurves only."""
    return {n: m for n, m in mechanisms.items() if n == noisecurve or n not in NOISECURVES}


def intervention(
    mechanisms: dict, arm: str, el: float, kappa: float, noisecurve: str = "noisecurve"
) -> pd.DataFrame:
    """Table 1 with sizes, for one of the NoiseCurves among the paper's pool.

    Columns: the best mechanism, the NoiseCurve's rank, its damage over dense's, and whether the
    NoiseCurve score (which has no mu: it names what is best at mu = 0) and the MOMENT-DP score
    name the best mechanism.
    """
    pool = against(mechanisms, noisecurve)
    oracle = damages(pool, arm, el, kappa, forward=True)
    score = damages(pool, arm, el, kappa)
    best = oracle.idxmin(axis=1)
    named = {"NC score": score.loc[0.0].idxmin(), "MOMENT-DP": score.idxmin(axis=1)}
    table = pd.DataFrame(
        {
            "best": best,
            "rank": oracle.rank(axis=1)[noisecurve].astype(int),
            "noisecurve / dense": oracle[noisecurve] / oracle["dense"],
        }
    )
    for column, choice in named.items():
        table[column] = np.where(best == choice, "correct", "wrong")
    return table


def printed_rows(damage, noisecurve: str = "noisecurve", dense: str = "dense"):
    """How many of Table 1's five rows read as printed, from the damages of the discovery grid (an
    xarray ``DataArray``): (el, spectrum)."""
    others = [name for name in PAPER if name not in ("dense", *NOISECURVES)]
    pool = damage.sel(arm="a", schedule="constant", mechanism=[noisecurve, dense, *others])
    best = pool.sel(momentum=list(MOMENTA)).idxmin("mechanism")
    first, rest = best.isel(momentum=0, drop=True), best.isel(momentum=slice(1, None))
    return (first == noisecurve).astype(int) + (rest == dense).sum("momentum")


def crossings(
    mechanisms: dict, first: str, second: str, arm: str, el: float, kappa: float
) -> list[float]:
    """The momenta below 0.98 at which two mechanisms exchange places, each to 1e-6; bracketed on a
    grid of step 0.02, so two of them within one cell are missed."""
    pair = {name: mechanisms[name] for name in (first, second)}

    def log_ratios(momenta):
        table = damages(pair, arm, el, kappa, momenta)
        return np.log(table[first] / table[second]).to_numpy()

    grid = np.linspace(0.0, 0.98, 50)
    above = log_ratios(grid) > 0
    return [
        float(brentq(lambda mu: log_ratios([mu])[0], grid[i], grid[i + 1], xtol=1e-6))
        for i in np.flatnonzero(above[1:] != above[:-1])
    ]


def step_and_state(
    mechanisms: dict, el: float, kappa: float, first: str = "noisecurve", second: str = "dense"
) -> pd.DataFrame:
    """Arm (a)'s ratio of damages as a product: what each cause does alone, and what is left.

    Columns: the ratio without momentum; the factors by which arm (c), a larger step alone, and
    arm (b), momentum at an unchanged effective step, multiply it; the factor that only both
    together bring; their product, the ratio of arm (a).
    """
    tables = {arm: damages(mechanisms, arm, el, kappa) for arm in ARMS}
    ratio = {arm: table[first] / table[second] for arm, table in tables.items()}
    start = ratio["a"].loc[0.0]
    step, state = ratio["c"] / start, ratio["b"] / start
    return pd.DataFrame(
        {
            "without momentum": start,
            "step size alone": step,
            "state alone": state,
            "only together": ratio["a"] / (start * step * state),
            "arm (a)": ratio["a"],
        }
    )


def winners(mechanisms: dict, arm: str, el: float) -> pd.DataFrame:
    """The best mechanism of each of the nine slices of 3.1 (rows) at its four momenta."""
    rows = {
        (kappa, schedule): damages(
            mechanisms, arm, el, kappa, SLICE_MOMENTA, schedule=schedule
        ).idxmin(axis=1)
        for kappa in (10.0, 100.0, 1000.0)
        for schedule in ("constant", "cosine", "warmup_cosine")
    }
    return pd.DataFrame(rows).T.rename_axis(["kappa", "schedule"])


def with_library_dense(mechanisms: dict) -> dict:
    """The pool with dense as the paper has it (C): where jax-privacy's optimiser stops, 1.4e-4 above
    the optimum in root error at T = 128. Near ties turn on the difference."""
    steps = next(iter(mechanisms.values())).steps
    (library,) = catalogue(steps, pool=["dense_jax_privacy"]).values()
    return mechanisms | {"dense": library}


def ledger_rows(el: float = 0.4, kappa: float = 10.0) -> dict[str, object]:
    """Table 1, Fig. 1b and the slices of 3.1 at the book's default setting, in the paper's arm (a)
    and with its source of dense."""
    labels = {"noisecurve": "NoiseCurve", "dense": "Dense MF"}
    table = intervention(with_library_dense(native_pool(el, kappa)), "a", el, kappa)
    rows = {}
    for momentum, row in table.iterrows():
        suffix = f"mu{momentum:.2f}"
        rows[f"intervention.best.{suffix}"] = labels.get(row["best"], row["best"])
        rows[f"intervention.nc_score.{suffix}"] = row["NC score"]
        rows[f"intervention.momentdp_score.{suffix}"] = row["MOMENT-DP"]
    dense_wins = table.index[table["best"] == "dense"]
    rows["intervention.dense_from"] = float(dense_wins.min())
    slices = winners(with_library_dense(catalogue(128)), "a", el)
    pool, rates = catalogue(128), schedules.cosine(128, el)
    orders = {
        tuple(
            rank(
                pool, Momentum(0.9), spectra.log_spaced(16, kappa), rates, epsilon=e, delta=1e-5
            ).index
        )
        for e in EPSILONS
    }
    rows["privacy.epsilon_invariance"] = "invariant" if len(orders) == 1 else "changes"
    rows["crossovers.slices_changed"] = int((slices.nunique(axis=1) > 1).sum())
    return rows
