"""What MOMENT-DP expects of the CNN study's runs, and what came out: costs of noise in test loss."""

from pathlib import Path

import numpy as np
import pandas as pd

from momentdp.damage import damage
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.mechanisms.catalogue import catalogue
from momentdp.studies.cnn_tables import (
    CONDITIONS,
    NO_NOISE,
    POOL,
    RESULTS,
    calibrated,
    load_records,
)
from momentdp.studies.records import read_record


def predicted_damage(folder: Path = RESULTS) -> dict[int, pd.DataFrame]:
    """Seed -> MOMENT-DP's damage in nats of each mechanism (rows) in each condition (columns).

    From Lanczos' values and the trace at the initialisation of that seed.
    """
    found = {}
    for known in calibrated(folder).to_dict("records"):
        pool = catalogue(known["steps"], pool=list(POOL))
        spectrum = Spectrum(known["eigenvalues"], known["multiplicities"])
        scale = known["noise_multiplier"] * known["clip_norm"] / known["batch_size"]
        table = {}
        for condition, (momentum, schedule) in CONDITIONS.items():
            rates = schedules.FAMILIES[schedule](known["steps"], known["learning_rate"])
            home = Momentum(momentum), spectrum, rates
            table[condition] = {
                n: damage(m, *home, noise_multiplier=scale) for n, m in pool.items()
            }
        found[known["seed"]] = pd.DataFrame(table)
    return found


def excess_along(condition: str, outcome: str, folder: Path = RESULTS) -> pd.DataFrame:
    """Outcome of each mechanism less that of the run without noise, a checkpoint a row.

    Mean over the seeds of the condition that have all mechanisms.
    """
    records, of_seeds = load_records(folder, whole=True), []
    for seed in records.loc[records.condition == condition, "seed"].unique():
        along = {}
        for path in sorted(Path(folder).glob(f"{condition}.*.{seed}.json")):
            record = read_record(path)
            points = {point["step"]: point[outcome] for point in record["checkpoints"]}
            along[record["mechanism"]] = points
        table = pd.DataFrame(along).rename_axis("step")
        of_seeds.append(table.drop(columns=NO_NOISE).sub(table[NO_NOISE], axis=0))
    return sum(of_seeds) / len(of_seeds)


def against_damage(records: pd.DataFrame, folder: Path = RESULTS) -> pd.DataFrame:
    """By (condition, mechanism, seed): damage from the curvature at the start, and what came out.

    `observed` is the test loss above that without noise after the last step; both in nats.
    """
    damages = predicted_damage(folder)
    ends = records.pivot(index=["condition", "seed"], columns="mechanism", values="test_loss")
    observed = ends.drop(columns=NO_NOISE).sub(ends[NO_NOISE], axis=0).stack()
    predicted = [damages[seed].loc[name, where] for where, seed, name in observed.index]
    found = pd.DataFrame({"predicted": predicted, "observed": observed})
    return found.reorder_levels(["condition", "mechanism", "seed"]).sort_index()


def by_condition(against: pd.DataFrame) -> pd.DataFrame:
    """Mean over seeds of `against_damage`, independent noise beside the mean of the others."""
    names = against.index.get_level_values("mechanism")
    kind = pd.Series(np.where(names == "iid", "iid", "mean of the others"), against.index)
    of_seeds = against.groupby(["condition", kind.rename("mechanism"), "seed"]).mean()
    groups = of_seeds.groupby(["condition", "mechanism"])
    errors = groups["observed"].sem().rename("standard error")
    return groups.mean().join(errors).reindex(CONDITIONS, level="condition")


def by_sign_of_noise(
    condition: str, mechanism: str = "iid", folder: Path = RESULTS
) -> pd.DataFrame:
    """Test loss above no noise, by seed, from runs with the noise and with its sign turned.

    `curved` is their mean, what noise costs on average: at a minimum it is the damage, which is
    `predicted`. `slope` is half their difference, which at a minimum would be zero. In nats.
    """

    def ends(where: Path) -> pd.DataFrame:
        runs = load_records(where)
        runs = runs[runs.condition == condition]
        return runs.pivot(index="seed", columns="mechanism", values="test_loss")

    drawn, turned = ends(folder), ends(Path(folder) / "mirrored")
    found = pd.DataFrame({"as drawn": drawn[mechanism], "turned": turned[mechanism]})
    found = found.sub(drawn[NO_NOISE], axis=0).dropna()
    found["curved"] = found.mean(axis=1)
    found["slope"] = (found["as drawn"] - found["turned"]) / 2
    damages = predicted_damage(folder)
    found["predicted"] = [damages[seed].loc[mechanism, condition] for seed in found.index]
    return found
