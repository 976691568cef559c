"""Input checks. Each refusal is a ValueError that names the argument, its value and the mend."""

import numpy as np


def refuse(argument: str, value: object, mend: str) -> ValueError:
    """The error to raise for a bad ``argument``: what it was, and what to pass instead."""
    return ValueError(f"{argument}: got {value}; {mend}")


def finite_array(argument: str, value, ndim: int) -> np.ndarray:
    """``value`` as float64 of ``ndim`` dimensions; refuses other shapes, NaN and infinities."""
    try:
        array = np.asarray(value)
        is_complex = np.iscomplexobj(array)
        array = array if is_complex else np.array(array, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise refuse(argument, type(value).__name__, f"pass numbers ({error})") from None
    if is_complex:
        raise refuse(argument, "complex numbers", "pass real numbers")
    if array.ndim != ndim or array.size == 0:
        raise refuse(argument, f"shape {array.shape}", f"pass a non-empty array of {ndim} dim(s)")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise refuse(argument, f"{array[where]} at index {where}", "pass finite entries only")
    return array


def number(argument: str, value, low: float, high: float = np.inf, *, open_low=False) -> float:
    """``value`` as float in [low, high), or in (low, high) with ``open_low``."""
    is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    above = is_number and (value > low if open_low else value >= low)
    if not (above and value < high):
        raise refuse(
            argument, repr(value), f"pass a number in {'(' if open_low else '['}{low:g}, {high:g})"
        )
    return float(value)


def count(argument: str, value, low: int = 1) -> int:
    """``value`` as int, at least ``low``."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or value < low:
        raise refuse(argument, repr(value), f"pass a whole number of at least {low}")
    return int(value)


def symmetric(argument: str, value, size: int | None = None) -> np.ndarray:
    """``value`` as a finite symmetric float64 matrix."""
    array = finite_array(argument, value, 2)
    if array.shape[0] != array.shape[1] or size not in (None, array.shape[0]):
        raise refuse(
            argument, f"shape {array.shape}", f"pass a square matrix of size {size or 'n'}"
        )
    gap = float(np.abs(array - array.T).max())
    if gap > 1e-10 * max(float(np.abs(array).max()), 1e-300):
        raise refuse(argument, f"asymmetric by {gap:.3g}", "pass (M + M.T) / 2")
    return array
