"""Eight learning-rate schedules: each returns the (steps,) rates, one formula a function.

The paper names the families (Appendix D) and leaves the formulas open; those here are the book's.
With t = 0..T-1 the step and p the peak: every schedule starts at t = 0 and reaches p somewhere.
"""

import jax
import numpy as np
from jaxtyping import Float

from momentdp._checks import count, finite_array, number

Rates = Float[np.ndarray, " steps"]


def _steps_and_peak(steps, peak_value) -> tuple[np.ndarray, float]:
    times = np.arange(count("steps", steps), dtype=np.float64)
    return times, number("peak_value", peak_value, 0.0, open_low=True)


def constant(steps: int, peak_value: float) -> Rates:
    """p at every step."""
    times, peak = _steps_and_peak(steps, peak_value)
    return np.full(len(times), peak)


def warmup_constant(steps: int, peak_value: float, warmup_steps: int = 8) -> Rates:
    """p min(1, (t + 1) / W): linear over the first W steps, then constant."""
    times, peak = _steps_and_peak(steps, peak_value)
    return peak * np.minimum(1.0, (times + 1) / count("warmup_steps", warmup_steps))


def cosine(steps: int, peak_value: float) -> Rates:
    """p (1 + cos(pi t / T)) / 2: from p down to almost 0."""
    times, peak = _steps_and_peak(steps, peak_value)
    return peak * 0.5 * (1 + np.cos(np.pi * times / len(times)))


def warmup_cosine(steps: int, peak_value: float, warmup_steps: int = 8) -> Rates:
    """p (t + 1) / W for t < W, then the cosine over the T - W steps that are left."""
    times, peak = _steps_and_peak(steps, peak_value)
    warmup = count("warmup_steps", warmup_steps)
    progress = np.maximum(times - warmup, 0.0) / max(len(times) - warmup, 1)
    return peak * np.where(
        times < warmup, (times + 1) / warmup, 0.5 * (1 + np.cos(np.pi * progress))
    )


def step_decay(steps: int, peak_value: float, factor: float = 0.1, drops: int = 2) -> Rates:
    """p factor^k in the k-th of (drops + 1) equal parts of the run."""
    times, peak = _steps_and_peak(steps, peak_value)
    parts = np.floor(times * (count("drops", drops) + 1) / len(times))
    return peak * number("factor", factor, 0.0, 1.0, open_low=True) ** parts


def exponential_decay(steps: int, peak_value: float, final_ratio: float = 0.1) -> Rates:
    """p r^(t / (T - 1)): from p down to r p (Kalinin & Andersson's schedule)."""
    times, peak = _steps_and_peak(steps, peak_value)
    ratio = number("final_ratio", final_ratio, 0.0, 1.0 + 1e-12, open_low=True)
    return peak * ratio ** (times / max(len(times) - 1, 1))


def front_loaded(steps: int, peak_value: float, low_ratio: float = 0.1) -> Rates:
    """p in the first quarter of the run, low_ratio p afterwards."""
    times, peak = _steps_and_peak(steps, peak_value)
    low = number("low_ratio", low_ratio, 0.0, open_low=True)
    return peak * np.where(times < len(times) / 4, 1.0, low)


def back_loaded(steps: int, peak_value: float, low_ratio: float = 0.1) -> Rates:
    """low_ratio p until the last quarter of the run, p there."""
    times, peak = _steps_and_peak(steps, peak_value)
    low = number("low_ratio", low_ratio, 0.0, open_low=True)
    return peak * np.where(times < 3 * len(times) / 4, low, 1.0)


def from_optax(schedule, steps: int) -> Rates:
    """The values of an optax schedule (a function of the step count) at 0..steps-1."""
    with jax.enable_x64(True):
        values = [float(schedule(t)) for t in range(count("steps", steps))]
    return finite_array("schedule", values, 1)


FAMILIES = {
    "constant": constant,
    "warmup_constant": warmup_constant,
    "cosine": cosine,
    "warmup_cosine": warmup_cosine,
    "step_decay": step_decay,
    "exponential_decay": exponential_decay,
    "front_loaded": front_loaded,
    "back_loaded": back_loaded,
}
