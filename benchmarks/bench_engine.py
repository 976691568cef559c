"""Damage by structured solves against the literal formula, and how its time grows with T.

Both sides start from the same inputs: Hessian or eigenvalues, rates, strategy. The literal side
multiplies the 2d x 2d block matrices to G, inverts C to K, and multiplies G (K (x) I) G'; the time
of that last product alone is printed too.
"""

import statistics
import time
import timeit

import numpy as np

from momentdp.damage import damage
from momentdp.dynamics import spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism

STEPS, DIMENSIONS, REPEATS, WANTED = 128, 16, 5, 100
MOMENTUM = Momentum(0.9)
SPECTRUM = spectra.log_spaced(DIMENSIONS, 100.0)


def square_root(steps: int, bands: int = 16) -> Mechanism:
    """Banded Toeplitz: the first coefficients of (1 - x)^(-1/2)."""
    k = np.arange(1, bands)
    coef = np.cumprod(np.r_[1.0, (2 * k - 1) / (2 * k)])
    return Mechanism.from_toeplitz(steps=steps, strategy_coef=coef)


def median_seconds(function) -> float:
    """Seconds a call: median of REPEATS, each long enough for the clock; the first one compiles."""
    function()
    timer = timeit.Timer(function, timer=time.process_time)  # other processes do not count
    number = max(1, round(0.05 / timer.timeit(1)))
    return statistics.median(timer.repeat(REPEATS, number)) / number


def literal_G(H, rates):
    """G = [G_0 .. G_{T-1}] (d, dT), G_t = P A_{T-1} .. A_{t+1} B_t (paper eq. 3)."""
    one, mu = np.eye(len(H)), MOMENTUM.momentum
    G, after = [], np.eye(2 * len(H))[: len(H)]
    for eta in rates[::-1]:
        G.append(after @ np.vstack([-eta * one, one]))
        after = after @ np.block([[one - eta * H, -eta * mu * one], [H, mu * one]])
    return np.hstack(G[::-1])


def literal(H, G, K) -> float:
    """1/2 tr(H G (K (x) I) G'), every matrix written out."""
    return 0.5 * float(np.trace(H @ G @ np.kron(K, np.eye(len(H))) @ G.T))


def literal_damage(H, rates, C) -> float:
    """From Hessian, rates and strategy, all dense."""
    inverse = np.linalg.inv(C / np.linalg.norm(C, axis=0).max())
    return literal(H, literal_G(H, rates), inverse @ inverse.T)


def main() -> None:
    """Print ratio, agreement and exponent; fail if the ratio or the agreement is not reached."""
    m, rates = square_root(STEPS), np.full(STEPS, 0.3)
    U = np.linalg.qr(np.random.default_rng(0).normal(size=(DIMENSIONS, DIMENSIONS)))[0]
    H, C = (U * SPECTRUM.eigenvalues) @ U.T, m.strategy_matrix
    G, K = literal_G(H, rates), m.noising_matrix @ m.noising_matrix.T

    slow = median_seconds(lambda: literal_damage(H, rates, C))
    product = median_seconds(lambda: literal(H, G, K))
    fast = median_seconds(lambda: damage(m, MOMENTUM, SPECTRUM, rates))
    a, b = literal_damage(H, rates, C), damage(m, MOMENTUM, SPECTRUM, rates)
    difference = abs(a - b) / a
    print(f"damage, T = {STEPS}, d = {DIMENSIONS}, banded Toeplitz, median of {REPEATS}")
    print(f"  literal G (K (x) I) G'  {1e3 * slow:10.2f} ms ({1e3 * product:.2f} ms the product)")
    print(f"  structured solves       {1e3 * fast:10.2f} ms")
    print(f"  ratio {slow / fast:.0f} (wanted: {WANTED}), product alone {product / fast:.0f}")
    print(f"  relative difference {difference:.1e} (wanted: 1e-9)")

    horizons = 2 ** np.arange(12, 19)
    seconds = []
    for steps in horizons.tolist():
        long, long_rates = square_root(steps), np.full(steps, 0.05)
        seconds.append(median_seconds(lambda: damage(long, MOMENTUM, SPECTRUM, long_rates)))  # noqa: B023
        print(f"  T = {steps:7d}            {1e3 * seconds[-1]:10.2f} ms")
    exponent = np.polyfit(np.log(horizons[1:]), np.log(seconds[1:]), 1)[0]
    print(f"  time grows like T^{exponent:.2f}")
    if slow < WANTED * fast or difference > 1e-9:
        raise SystemExit("damage: the ratio or the agreement is not reached")


if __name__ == "__main__":
    main()
