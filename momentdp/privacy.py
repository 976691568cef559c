"""How much noise (epsilon, delta)-differential privacy asks for.

The analytic Gaussian mechanism (Balle and Wang 2018) through dp-accounting. The classical bound
``sqrt(2 log(1.25 / delta)) / epsilon`` is not used: it is wasteful below epsilon = 1, not proven
above, and too small where epsilon is large.
"""

from numbers import Real

import dp_accounting

from momentdp import _checks

# How far one clipped gradient can move the released sum, in units of the clip norm. Leaving a
# record out (add_or_remove_one) or zeroing it (replace_special) moves the sum by one clip norm;
# exchanging it for any other (replace_one) moves it by two.
_NEIGHBORING_FACTORS = {"add_or_remove_one": 1.0, "replace_special": 1.0, "replace_one": 2.0}


def neighboring_factor(neighboring_relation: str) -> float:
    """The factor that a neighbouring relation puts on every sensitivity: 1, or 2 for replace-one.

    The names are those of ``dp_accounting.NeighboringRelation`` in lower case; ``replace_special``
    is also known as zero-out. Raises ValueError for any other name.
    """
    if neighboring_relation not in _NEIGHBORING_FACTORS:
        known = ", ".join(_NEIGHBORING_FACTORS)
        raise _checks.refuse(
            "neighboring_relation", repr(neighboring_relation), f"pass one of {known}"
        )
    return _NEIGHBORING_FACTORS[neighboring_relation]


def noise_multiplier(epsilon: Real, delta: Real) -> float:
    """Smallest noise standard deviation that gives (epsilon, delta)-DP at L2 sensitivity 1.

    Equivalent to ``dp_accounting.get_sigma_gaussian`` with the degenerate ends refused.

    Args:
        epsilon: positive, finite.
        delta: strictly between 0 and 1.

    Raises:
        ValueError: epsilon or delta out of range.
    """
    epsilon = _checks.number("epsilon", epsilon, 0.0, open_low=True)
    delta = _checks.number("delta", delta, 0.0, 1.0, open_low=True)
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def noise_stddev(
    epsilon: Real,
    delta: Real,
    *,
    sensitivity: Real = 1.0,
    l2_clip_norm: Real = 1.0,
    normalize_by: Real = 1.0,
    neighboring_relation: str = "add_or_remove_one",
) -> float:
    """Standard deviation of the white noise ``w`` that the optimizer's gradient receives.

    ``noise_multiplier x neighboring_factor x sensitivity x l2_clip_norm / normalize_by``, in the
    units of the gradient.

    Args:
        epsilon: positive, finite.
        delta: strictly between 0 and 1.
        sensitivity: of the strategy under its participation pattern (``Mechanism.sensitivity``).
        l2_clip_norm: bound on the norm of one example's gradient.
        normalize_by: what the sum of clipped gradients is divided by (usually the batch size).
        neighboring_relation: see :func:`neighboring_factor`.

    Raises:
        ValueError: an argument out of range, or an unknown neighbouring relation.
    """
    sensitivity = _checks.number("sensitivity", sensitivity, 0.0, open_low=True)
    l2_clip_norm = _checks.number("l2_clip_norm", l2_clip_norm, 0.0, open_low=True)
    normalize_by = _checks.number("normalize_by", normalize_by, 0.0, open_low=True)
    scale = neighboring_factor(neighboring_relation) * sensitivity * l2_clip_norm / normalize_by
    return noise_multiplier(epsilon, delta) * scale
