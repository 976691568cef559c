"""Schedules against optax, where optax has them, and against their formulas."""

import numpy as np
import optax
import pytest

from momentdp.dynamics import schedules

STEPS = 24


def values(schedule):
    return np.array([float(schedule(t)) for t in range(STEPS)])


def test_cosine_is_optax():
    expected = values(optax.cosine_decay_schedule(0.3, STEPS))
    np.testing.assert_allclose(schedules.cosine(STEPS, 0.3), expected, rtol=1e-5, atol=1e-8)


def test_exponential_decay_is_optax():
    expected = values(optax.exponential_decay(0.3, STEPS - 1, 0.1))
    np.testing.assert_allclose(schedules.exponential_decay(STEPS, 0.3), expected, rtol=1e-5)


def test_warmup_is_optax_one_step_later():
    """Ours starts at p / W, not at 0: a rate of 0 would waste the first step's privacy."""
    expected = values(lambda t: optax.linear_schedule(0.0, 0.3, 6)(t + 1))
    np.testing.assert_allclose(schedules.warmup_constant(STEPS, 0.3, 6), expected, rtol=1e-6)


def test_warmup_cosine_parts():
    rates = schedules.warmup_cosine(STEPS, 0.3, 6)
    np.testing.assert_allclose(rates[:6], schedules.warmup_constant(6, 0.3, 6), rtol=1e-14)
    np.testing.assert_allclose(rates[6:], schedules.cosine(STEPS - 6, 0.3), rtol=1e-14)


def test_step_decay_is_optax():
    expected = values(optax.piecewise_constant_schedule(0.3, {8: 0.1, 16: 0.1}))
    np.testing.assert_allclose(schedules.step_decay(STEPS, 0.3), expected, rtol=1e-6)


def test_front_and_back_loaded():
    front = np.r_[np.full(6, 0.3), np.full(18, 0.03)]
    np.testing.assert_allclose(schedules.front_loaded(STEPS, 0.3), front, rtol=1e-14)
    np.testing.assert_allclose(schedules.back_loaded(STEPS, 0.3), front[::-1], rtol=1e-14)


def test_constant():
    np.testing.assert_array_equal(schedules.constant(3, 0.3), [0.3, 0.3, 0.3])


def test_eight_families_all_reach_the_peak():
    assert len(schedules.FAMILIES) == 8
    for family in schedules.FAMILIES.values():
        rates = family(STEPS, 0.7)
        assert rates.dtype == np.float64 and rates.shape == (STEPS,)
        assert rates.max() == pytest.approx(0.7, rel=1e-14) and rates.min() > 0
        np.testing.assert_allclose(family(STEPS, 1.4), 2 * rates, rtol=1e-14)
        assert family(1, 0.7).shape == (1,)


def test_from_optax():
    schedule = optax.warmup_cosine_decay_schedule(0.1, 1.0, 4, STEPS)
    found = schedules.from_optax(schedule, STEPS)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, values(schedule), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: schedules.constant(0, 0.1), r"steps: got 0; pass a whole number of at least 1"),
        (lambda: schedules.cosine(4, 0.0), r"peak_value: got 0\.0; pass a number in \(0, inf\)"),
        (lambda: schedules.cosine(4, np.nan), r"peak_value: got nan; pass"),
        (lambda: schedules.warmup_cosine(4, 0.1, 0), r"warmup_steps: got 0; pass a whole"),
        (lambda: schedules.step_decay(4, 0.1, factor=1.0), r"factor: got 1\.0; .*\(0, 1\)"),
        (lambda: schedules.exponential_decay(4, 0.1, 0.0), r"final_ratio: got 0\.0; pass"),
        (lambda: schedules.front_loaded(4, 0.1, -1.0), r"low_ratio: got -1\.0; pass"),
        (lambda: schedules.from_optax(lambda t: np.nan, 3), r"schedule: got nan at index \(0,\)"),
    ],
)
def test_bad_input(build, message):
    with pytest.raises(ValueError, match="^" + message):
        build()
