"""The table a practitioner reads: mechanisms by calibrated damage, best first."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from jaxtyping import Float

from momentdp._checks import number, refuse
from momentdp.amplification import amplified_multiplier
from momentdp.damage import damage, quadratic_factor
from momentdp.evaluation.ranking import ranks
from momentdp.mechanisms.mechanism import check_mechanism
from momentdp.privacy import noise_multiplier, noise_stddev
from momentdp.sensitivity import check_pattern
from momentdp.synthesis.dense import nuclear_bound, participation_bound

LONG = 4096  # steps from which on a floor within 1e-3 is close enough: it takes a minute else


def damage_floor(
    optimizer,
    spectrum,
    learning_rates,
    *,
    noise_multiplier: float = 1.0,
    min_sep: int | None = None,
    max_participations: int = 1,
) -> float:
    """A damage that no mechanism can go below once its sensitivity counts.

    The nuclear-norm dual bound of the final-loss problem, exact in the limit for single
    participation; for repeated participation a weaker one of the same kind
    (``participation_bound``). Arguments and errors as in ``damage``.
    """
    sigma = number("noise_multiplier", noise_multiplier, 0.0)
    factor = quadratic_factor(optimizer, spectrum, learning_rates)
    tolerance = 1e-6 if len(factor) <= LONG else 1e-3
    min_sep, participations = check_pattern(len(factor), min_sep, max_participations)
    if participations == 1:
        return 0.5 * sigma**2 * nuclear_bound(factor, tolerance=tolerance)[0]
    bound = participation_bound(factor, min_sep, participations, tolerance=tolerance)
    return 0.5 * sigma**2 * bound


def calibration(
    mechanisms: Mapping, epsilon: float, delta: float, units: Mapping, pattern: Mapping, sampling
) -> pd.DataFrame:
    """What (epsilon, delta) asks of each mechanism; arguments and errors as in ``rank``.

    ``units`` holds its clipping, ``pattern`` its participation. Columns: sensitivity,
    sensitivity_is_exact, noise_multiplier, amplified (whether sampling lowered it) and
    noise_stddev, that of the white noise w in the units of the gradient.
    """
    if not isinstance(mechanisms, Mapping) or not mechanisms:
        raise refuse("mechanisms", repr(mechanisms)[:60], "pass a dict of name -> Mechanism")
    if sampling and units.get("neighboring_relation", "add_or_remove_one") != "add_or_remove_one":
        mend = "pass add_or_remove_one with sampling, or leave sampling out"
        raise refuse("neighboring_relation", repr(units["neighboring_relation"]), mend)
    full, unit = noise_multiplier(epsilon, delta), noise_stddev(epsilon, delta, **units)
    rows = {}
    for name, m in mechanisms.items():
        check_mechanism(f"mechanisms[{name!r}]", m)
        amplified = amplified_multiplier(m, epsilon, delta, **sampling) if sampling else None
        multiplier, participation = (amplified, {}) if amplified else (full, pattern)
        sensitivity = m.sensitivity(**participation)
        rows[name] = {
            "sensitivity": sensitivity,
            "sensitivity_is_exact": m.sensitivity_is_exact(**participation),
            "noise_multiplier": multiplier,
            "amplified": amplified is not None,
            "noise_stddev": unit * multiplier / full * sensitivity,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("mechanism")


def rank(
    mechanisms,
    optimizer,
    spectrum,
    learning_rates,
    *,
    epsilon: float,
    delta: float,
    l2_clip_norm: float = 1.0,
    normalize_by: float = 1.0,
    neighboring_relation: str = "add_or_remove_one",
    min_sep: int | None = None,
    max_participations: int = 1,
    sampling: Mapping | None = None,
) -> pd.DataFrame:
    """Rank mechanisms by damage, each calibrated to (epsilon, delta) by its own sensitivity.

    Args:
        mechanisms: dict name -> Mechanism.
        optimizer, spectrum, learning_rates: as in ``damage``.
        epsilon, delta: privacy target.
        l2_clip_norm: bound on one example's gradient norm.
        normalize_by: what the clipped sum is divided by (batch size for a mean).
        neighboring_relation: "add_or_remove_one", "replace_special" (zero-out) or "replace_one".
        min_sep, max_participations: the participation pattern.
        sampling: {"data_size": n, "batch_size": b} counts amplification by (cyclic) Poisson
            sampling for independent and banded noise (see ``momentdp.amplification``); left out,
            none is counted.

    Returns:
        DataFrame indexed by mechanism: rank (1 is best; ties at relative 1e-9 share a place),
        damage (loss units), relative_to_best, relative_to_floor (a floor that counts no
        amplification), sensitivity, sensitivity_is_exact, noise_multiplier.

    Raises:
        ValueError: no mechanism, mismatched horizons, or anything that ``damage`` refuses.
    """
    units = {
        "l2_clip_norm": l2_clip_norm,
        "normalize_by": normalize_by,
        "neighboring_relation": neighboring_relation,
    }
    pattern = {"min_sep": min_sep, "max_participations": max_participations}
    table = calibration(mechanisms, epsilon, delta, units, pattern, sampling)
    case = optimizer, spectrum, learning_rates
    # noise_stddev holds the sensitivity of the participation already, `damage` that of a single one.
    damages = {
        name: damage(m, *case, noise_multiplier=table.loc[name, "noise_stddev"] / m.sensitivity())
        for name, m in mechanisms.items()
    }
    unit = noise_stddev(epsilon, delta, **units)
    floor = damage_floor(*case, noise_multiplier=unit, **pattern)
    table.insert(0, "damage", pd.Series(damages))
    table = table.sort_values("damage", kind="stable").drop(columns=["amplified", "noise_stddev"])
    table.insert(0, "rank", ranks(table["damage"]))
    damage_column = table["damage"].to_numpy()
    table.insert(2, "relative_to_best", ratio(damage_column, damage_column[0]))
    table.insert(3, "relative_to_floor", ratio(damage_column, floor))
    return table


def ratio(values: Float[np.ndarray, "..."], reference: float) -> Float[np.ndarray, "..."]:
    """values / reference, where no damage at all is as good as no damage: 0 / 0 is 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((values == 0) & (reference == 0), 1.0, values / reference)
