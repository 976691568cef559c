"""The catalogue: named mechanisms of sensitivity 1 for a horizon, built once and kept."""

from functools import partial

import numpy as np

from momentdp._checks import count, number, refuse
from momentdp.dynamics.optimizers import check_rates
from momentdp.dynamics.spectra import as_spectrum
from momentdp.mechanisms import constructions, store
from momentdp.mechanisms.mechanism import Mechanism

# name -> (inputs that the construction needs, whether it takes an optimiser and is stored)
MEMBERS = {
    "iid": ((), False),
    "dense": ((), True),
    "bandmf_mean": ((), True),
    "bandmf_max": ((), True),
    "toeplitz_mean": ((), True),
    "toeplitz_max": ((), True),
    "bandinv_mean": ((), True),
    "bandinv_max": ((), True),
    "bisr": ((), False),
    "lr_aware_sqrt": ((), False),
    "noisecurve": (("learning_rates", "spectrum"), True),
    "noisecurve_floor": (("learning_rates", "spectrum"), True),
    "noisecurve_adam": (("learning_rates", "spectrum"), True),
    "dense_jax_privacy": ((), True),
    "sqrt": ((), False),
    "nsr": ((), False),
    "lr_aware_toeplitz": (("learning_rates",), False),
    "lr_aware_opt": (("learning_rates",), True),
    "momentum_bisr": (("momentum",), False),
    "momentum_dense": (("learning_rates", "momentum"), True),
}
PAPER = tuple(MEMBERS)[:11]


def catalogue(
    steps: int,
    *,
    bands: int = 16,
    learning_rates=None,
    spectrum=None,
    momentum: float | None = None,
    pool="paper",
) -> dict[str, Mechanism]:
    """Named mechanisms of sensitivity 1 (single participation) for a horizon.

    Args:
        steps: horizon T.
        bands: bands of C, or coefficients of C^-1, where the construction has some.
        learning_rates: (steps,), spectrum: Spectrum or (modes,), momentum: mu. A member that needs
            one of these appears only when it is given.
        pool: "paper" (Appendix C), "all", or a sequence of names, which all have to be buildable.

    Returns:
        dict name -> Mechanism. What takes an optimiser is read from the committed strategies or
        the cache folder where it can be.

    Raises:
        ValueError: an unknown name or pool, a member without its input, or bad inputs.
    """
    steps, bands = count("steps", steps), count("bands", bands)
    given = {}
    if learning_rates is not None:
        given["learning_rates"] = check_rates(learning_rates)
        if len(given["learning_rates"]) != steps:
            raise refuse("learning_rates", f"{len(learning_rates)} values", f"pass steps = {steps}")
    if spectrum is not None:
        given["spectrum"] = as_spectrum(spectrum)
    if momentum is not None:
        given["momentum"] = number("momentum", momentum, 0.0, 1.0)
    return {name: _member(name, steps, bands, given) for name in _names(pool, given)}


def _names(pool, given) -> list[str]:
    if isinstance(pool, str):
        if pool not in ("paper", "all"):
            raise refuse("pool", repr(pool), 'pass "paper", "all" or a sequence of names')
        names = PAPER if pool == "paper" else tuple(MEMBERS)
        return [name for name in names if set(MEMBERS[name][0]) <= set(given)]
    for name in pool:
        if name not in MEMBERS:
            raise refuse("pool", repr(name), f"pass names among {', '.join(MEMBERS)}")
        missing = set(MEMBERS[name][0]) - set(given)
        if missing:
            raise refuse("pool", repr(name), f"also pass {', '.join(sorted(missing))}")
    return list(pool)


def _member(name, steps, bands, given) -> Mechanism:
    needs, is_stored = MEMBERS[name]
    inputs = {label: given[label] for label in needs}
    build = partial(getattr(constructions, name), steps, bands, **inputs)
    if not is_stored:
        return build().renamed(name)
    numbers = dict(inputs)
    if "spectrum" in numbers:
        spectrum = numbers.pop("spectrum")
        numbers |= {"eigenvalues": spectrum.eigenvalues, "multiplicities": spectrum.multiplicities}
        numbers["learning_rates"] = [np.max(inputs["learning_rates"])]  # NoiseCurve: the peak only
    return store.fetch(name, steps, build, bands=bands, **numbers)
