"""Which claims of Sections 3.1 and 3.2 hang on a choice that the paper does not state.

One choice at a time leaves the book's default; each row says what becomes of every claim. The rows
are kept in results/crossovers/panel.csv, since some need a solver.
"""

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from momentdp.dynamics import schedules, spectra
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies import discovery
from momentdp.studies.controlled_grid import (
    SCHEDULES,
    STEPS,
    TEN,
    agreement,
    conditions,
    rates,
    scores,
)
from momentdp.studies.crossovers import MOMENTA, SLICE_MOMENTA, batched_damages

PANEL = discovery.GRID.with_name("panel.csv")


@dataclass(frozen=True)
class Setting:
    """The choices; the defaults are those of the book's ledger."""

    arm: str = "a"
    el: float = 0.4
    kappa: float = 10.0
    pool: str = "paper"
    warmup: int = 8
    lr_aware: str = "lr_aware_sqrt"
    dense: str = "dense_jax_privacy"
    noisecurve: str = "noisecurve"

    def mechanisms(self, family: str, *, with_noisecurve: bool) -> dict:
        """The pool in the order of the catalogue, under the paper's names."""
        names = [name for name in (*TEN, "bisr") if name != "dense"]
        if self.pool == "without iid":
            names.remove("iid")
        if self.pool == "with nsr":
            names.append("nsr")
        shape = rates(family, 1.0, self.warmup)
        found = catalogue(STEPS, pool=[*names, self.lr_aware], learning_rates=shape)
        bands = STEPS if self.dense == "bandmf_mean" else 16
        (found["dense"],) = catalogue(STEPS, pool=[self.dense], bands=bands).values()
        if self.pool == "with BISR-last":
            found["bandinv_last"] = found["bandinv_max"]
        if with_noisecurve:
            at_home = {"spectrum": spectra.log_spaced(16, self.kappa)}
            at_home["learning_rates"] = schedules.constant(STEPS, self.el)
            found["noisecurve"] = catalogue(STEPS, pool=[self.noisecurve], **at_home)[
                self.noisecurve
            ]
        return found


CHOICES = {
    "arm": ("a", "b", "c"),
    "el": (0.1, 0.2, 0.4, 0.8),
    "kappa": (10.0, 100.0, 1000.0),
    "pool": ("paper", "without iid", "with nsr", "with BISR-last"),
    "warmup": (4, 8, 13, 16),
    "lr_aware": ("lr_aware_sqrt", "lr_aware_toeplitz", "lr_aware_opt"),
    "dense": ("dense_jax_privacy", "dense", "bandmf_mean"),  # the last one with all 128 bands
    "noisecurve": ("noisecurve", "noisecurve_floor", "noisecurve_adam"),
}


def settings() -> dict[tuple[str, str], Setting]:
    """(choice, its value) -> the default with that one choice changed."""
    return {
        (choice, f"{value}"): replace(Setting(), **{choice: value})
        for choice, values in CHOICES.items()
        for value in values
    }


def claims(setting: Setting) -> dict[str, object]:
    """What the claims of 3.1 and 3.2 become.

    Table 1's rows that read as printed (of 5); NoiseCurve's rank and its damage over dense's at
    momentum 0.9; the slices of 3.1 whose best mechanism changes (of 9); Table 3's pairwise
    accuracies in percent; nsr over dense at momentum 0 and 0.9. Table 3 is taken at the condition
    numbers kappa and 10 kappa, the slices at 10, 100 and 1000 whatever kappa is.
    """
    where = {"el": setting.el, "warmup": setting.warmup, "arm": setting.arm}
    home = conditions(MOMENTA, ("constant",), (setting.kappa,), **where)
    pool = setting.mechanisms("constant", with_noisecurve=True)
    table = pd.DataFrame(batched_damages(pool, home.values()), MOMENTA, list(pool))
    printed = np.array(["noisecurve"] + ["dense"] * 4)
    found = {"Table 1 rows": int((table.idxmin(axis=1) == printed).sum())}
    found["NoiseCurve rank"] = int(table.rank(axis=1).loc[0.9, "noisecurve"])
    found["NoiseCurve / dense"] = table.loc[0.9, "noisecurve"] / table.loc[0.9, "dense"]

    changed, parts = 0, []
    for family in SCHEDULES:
        pool = setting.mechanisms(family, with_noisecurve=False)
        for kappa in (10.0, 100.0, 1000.0):
            row = conditions(SLICE_MOMENTA, (family,), (kappa,), **where)
            changed += len(set(batched_damages(pool, row.values()).argmin(axis=1))) > 1
        kappas = (setting.kappa, 10 * setting.kappa)
        ten = {name: m for name, m in pool.items() if name != "bisr"}
        parts.append(scores(ten, conditions(MOMENTA, (family,), kappas, **where)))
    found["slices changed"] = int(changed)
    every = {name: pd.concat([part[name] for part in parts]) for name in parts[0]}
    right = agreement(every, ["pairwise"])
    for score in ("static", "lr_aware", "curv_sched_mu0"):
        found[score] = 100 * right.loc[score, "pairwise"]

    pair = catalogue(STEPS, pool=["nsr"]) | {"dense": pool["dense"]}
    nsr, dense = batched_damages(pair, [home[mu, "constant", setting.kappa] for mu in (0.0, 0.9)]).T
    found["nsr / dense, 0"], found["nsr / dense, 0.9"] = nsr / dense
    return found


def compute() -> pd.DataFrame:
    """Every row of the panel, indexed by choice and value."""
    rows = {key: claims(setting) for key, setting in settings().items()}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(["choice", "value"])


def load() -> pd.DataFrame:
    """The committed panel."""
    return pd.read_csv(PANEL, index_col=["choice", "value"], dtype={"value": str})
