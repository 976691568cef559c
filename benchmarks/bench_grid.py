"""The discovery grid in one vectorised pass: damages per second beside a loop over the literal formula
and a loop over the public `damage`.

Mechanisms that no solver is needed for; constructing them is timed apart. The loops are timed on a
sample of the grid, whose damages are compared with those of the pass.
"""

import time

import numpy as np

from momentdp.damage import damage
from momentdp.dynamics import literal, schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.studies import crossovers, discovery

NAMES = [name for name, axes in discovery.LOOKS_AT.items() if not axes]
SAMPLE, SECONDS, RATIO = 40, 60, 100


def timed(function):
    """What it returns, and CPU seconds of this process."""
    start = time.process_time()
    return function(), time.process_time() - start


def sample(grid):
    """(damage in the grid, mechanism, momentum, spectrum, rates) at SAMPLE random places."""
    rng, stacked = np.random.default_rng(0), grid.damage.stack(place=grid.damage.dims)
    for place in rng.choice(stacked.place.to_numpy(), SAMPLE):
        arm, el, momentum, schedule, spectrum, name = place
        mu, peak = crossovers.condition(arm, momentum, el)
        rates = schedules.FAMILIES[schedule](discovery.STEPS, peak)
        value = stacked.sel(place=place).item()
        yield value, discovery.construct(name), mu, spectra.BOOK[spectrum], rates


def by_formula(m, momentum, spectrum, rates) -> float:
    """Full matrices: H, G with its d x dT entries, K."""
    inverse = np.linalg.inv(m.strategy_matrix)
    H = literal.rotated(discovery.modes(spectrum), seed=0)
    return literal.damage(H, momentum, rates, inverse @ inverse.T)


def main() -> None:
    """Print rates and ratios; fail if the pass is slow or disagrees with the formula."""
    noising, building = timed(lambda: discovery.noising_matrices(names=NAMES))
    discovery.evaluate(noising, discovery.axes(el=[0.1]), arms=("a",))  # compiles
    grid, seconds = timed(lambda: discovery.evaluate(noising))
    count = grid.damage.size
    print(f"discovery grid: {count} damages, mechanisms built or read in {building:.1f} s")
    print(f"  one vectorised pass   {count / seconds:10.0f} a second ({seconds:.1f} s in all)")
    places = list(sample(grid))
    loops = {
        "public damage, a loop": lambda m, mu, s, r: damage(m, Momentum(mu), s, r),
        "literal formula, a loop": by_formula,
    }
    for name, function in loops.items():
        function(*places[0][1:])
        values, spent = timed(lambda: [function(*place[1:]) for place in places])  # noqa: B023
        off = max(abs(v / place[0] - 1) for v, place in zip(values, places, strict=True))
        ratio = (count / seconds) / (SAMPLE / spent)
        print(f"  {name:22s}{SAMPLE / spent:10.0f} a second, ratio {ratio:.0f}, off by {off:.0e}")
    if seconds > SECONDS or ratio < RATIO or off > 1e-7:
        raise SystemExit("grid: the time, the ratio or the agreement is not reached")


if __name__ == "__main__":
    main()
