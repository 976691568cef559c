"""The engine at T = 2^20, its growth, evaluations per second, and jax-privacy's MeanSE beside.

Each mechanism has 16 coefficients, of C (banded Toeplitz) or of C^-1 (inverse-banded); d = 16.
Peak memory is that of a process of its own, the interpreter and its libraries included.
"""

import resource
import subprocess
import sys
import time

import jax
import numpy as np
from jax_privacy.matrix_factorization import banded, toeplitz

from momentdp.damage import damage
from momentdp.dynamics import spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.evaluation.scores import mean_se
from momentdp.mechanisms.mechanism import Mechanism

COEFS, SPECTRUM = 16, spectra.log_spaced(16, 100.0)
LONGEST, SECONDS, GIBIBYTES, EXPONENT = 2**20, 30.0, 2.0, 1.1


def mechanism(kind: str, steps: int) -> Mechanism:
    """The square root of the prefix workload (C), or its inverse (C^-1), cut to 16."""
    k = np.arange(1, COEFS)
    sign = 0.5 if kind == "banded Toeplitz" else -0.5
    coef = np.cumprod(np.r_[1.0, (k - 1 + sign) / k])
    argument = "strategy_coef" if sign > 0 else "noising_coef"
    return Mechanism.from_toeplitz(steps=steps, **{argument: coef}).normalized()


def cpu_seconds(function, repeats: int = 3) -> float:
    """CPU time of one call, all threads together: the least of some after one that compiles."""
    function()
    times = []
    for _ in range(repeats):
        start = time.process_time()
        function()
        times.append(time.process_time() - start)
    return min(times)


def alone(kind: str) -> None:
    """One cold evaluation at T = 2^20; prints seconds and peak memory in GiB."""
    start = time.process_time()
    damage(mechanism(kind, LONGEST), Momentum(0.9), SPECTRUM, np.full(LONGEST, 0.05))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(time.process_time() - start, (peak if sys.platform == "linux" else peak / 1024) / 2**30)


def growth(kind: str) -> float:
    """Exponent of time against T, 2^12 to 2^20, printed on the way."""
    horizons = 2 ** np.arange(12, 21, 2)
    seconds = []
    for steps in horizons.tolist():
        m, rates = mechanism(kind, steps), np.full(steps, 0.05)
        seconds.append(cpu_seconds(lambda: damage(m, Momentum(0.9), SPECTRUM, rates)))  # noqa: B023
        print(f"    T = {steps:8d}  {1e3 * seconds[-1]:9.1f} ms")
    return float(np.polyfit(np.log(horizons), np.log(seconds), 1)[0])


def batch() -> None:
    """Evaluations per second over a grid of 20 momenta and 20 rates, T = 128."""
    m = mechanism("banded Toeplitz", 128)
    grid = [(mu, el) for mu in np.linspace(0, 0.95, 20) for el in np.linspace(0.02, 0.4, 20)]
    schedules = {el: np.full(128, el) for _, el in grid}

    def evaluate():
        return [damage(m, Momentum(mu), SPECTRUM, schedules[el]) for mu, el in grid]

    print(f"  {len(grid) / cpu_seconds(evaluate):.0f} evaluations per CPU-second, T = 128, d = 16")


def beside_jax_privacy() -> None:
    """MeanSE of the prefix workload: jax-privacy's own evaluation, ours and D_dyn, T = 1024."""
    steps, zero = 1024, np.zeros(1)
    m = mechanism("banded Toeplitz", steps)
    coef, ones = m.strategy_matrix[:COEFS, 0].copy(), np.ones(steps)
    normal = Mechanism.from_toeplitz(steps=steps, strategy_coef=coef, column_normalize=True)
    with jax.enable_x64(True):
        params = banded.ColumnNormalizedBanded.from_banded_toeplitz(steps, coef)
        error = toeplitz.per_query_error
        calls = {
            "jax-privacy toeplitz": lambda: float(error(strategy_coef=coef, n=steps).mean()),
            "ours, the same": lambda: mean_se(m, Momentum(0.0), zero, ones),
            "jax-privacy banded, unit columns": lambda: float(
                banded.per_query_error(params).mean()
            ),
            "ours, the same ": lambda: mean_se(normal, Momentum(0.0), zero, ones),
            "D_dyn, d = 16": lambda: damage(m, Momentum(0.9), SPECTRUM, 0.05 * ones),
        }
        for name, call in calls.items():
            print(f"  {name:34s} {1e3 * cpu_seconds(call):8.2f} ms  value {call():.6g}")


def main() -> None:
    """Print all rows; fail if time, memory or exponent is not reached."""
    failed = False
    for kind in ("banded Toeplitz", "inverse-banded"):
        print(f"{kind}, {COEFS} coefficients, d = 16")
        command = [sys.executable, __file__, kind]
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        seconds, memory = map(float, found.split())
        print(
            f"  T = 2^20, cold: {seconds:.1f} CPU-s (wanted: {SECONDS:.0f}), {memory:.2f} GiB (2)"
        )
        exponent = growth(kind)
        print(f"  time grows like T^{exponent:.2f} (wanted: {EXPONENT})")
        failed |= seconds > SECONDS or memory > GIBIBYTES or exponent > EXPONENT
    print("batch")
    batch()
    print("MeanSE, T = 1024, beside jax-privacy")
    beside_jax_privacy()
    if failed:
        raise SystemExit("scale: time, memory or exponent is not reached")


if __name__ == "__main__":
    alone(sys.argv[1]) if len(sys.argv) > 1 else main()
