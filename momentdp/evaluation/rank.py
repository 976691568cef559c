"""The table a practitioner reads: mechanisms by calibrated damage, best first."""

from collections.abc import Mapping

import pandas as pd

from momentdp._checks import number, refuse
from momentdp.damage import damage, quadratic_factor
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.privacy import noise_stddev
from momentdp.synthesis.dense import nuclear_bound

TIE = 1e-9  # relative difference up to which two damages are one: the book's tie rule


def damage_floor(optimizer, spectrum, learning_rates, *, noise_multiplier: float = 1.0) -> float:
    """A damage that no mechanism of sensitivity 1 under single participation can go below.

    The nuclear-norm dual bound of the final-loss problem; repeated participation only raises
    sensitivities, so it stays a bound there. Arguments and errors as in ``damage``.
    """
    sigma = number("noise_multiplier", noise_multiplier, 0.0)
    factor = quadratic_factor(optimizer, spectrum, learning_rates)
    return 0.5 * sigma**2 * nuclear_bound(factor)[0]


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

    Returns:
        DataFrame indexed by mechanism: rank (1 is best; ties at relative 1e-9 share a place),
        damage (loss units), relative_to_best,
        relative_to_floor, sensitivity, sensitivity_is_exact, noise_multiplier.

    Raises:
        ValueError: no mechanism, mismatched horizons, or anything that ``damage`` refuses.
    """
    if not isinstance(mechanisms, Mapping) or not mechanisms:
        raise refuse("mechanisms", repr(mechanisms)[:60], "pass a dict of name -> Mechanism")
    for name, m in mechanisms.items():
        if not isinstance(m, Mechanism):
            raise refuse(
                f"mechanisms[{name!r}]",
                type(m).__name__,
                "pass a Mechanism: Mechanism.from_strategy_matrix(C), or a design's .mechanism",
            )
    pattern = {"min_sep": min_sep, "max_participations": max_participations}
    unit = noise_stddev(
        epsilon,
        delta,
        l2_clip_norm=l2_clip_norm,
        normalize_by=normalize_by,
        neighboring_relation=neighboring_relation,
    )
    rows = {
        name: {
            "damage": damage(
                m, optimizer, spectrum, learning_rates, noise_multiplier=unit, **pattern
            ),
            "sensitivity": m.sensitivity(**pattern),
            "sensitivity_is_exact": m.sensitivity_is_exact(**pattern),
        }
        for name, m in mechanisms.items()
    }
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("mechanism")
    table = table.sort_values("damage", kind="stable")
    floor = damage_floor(optimizer, spectrum, learning_rates, noise_multiplier=unit)
    is_next = ~(table["damage"] <= table["damage"].shift() * (1 + TIE))
    places = pd.Series(range(1, len(table) + 1), index=table.index)
    table.insert(0, "rank", places.where(is_next).ffill().astype(int))
    table.insert(2, "relative_to_best", table["damage"] / table["damage"].iloc[0])
    table.insert(3, "relative_to_floor", table["damage"] / floor)
    table["noise_multiplier"] = noise_stddev(epsilon, delta)
    return table
