"""Privacy amplification by Poisson sampling: for independent noise and for banded strategies.

Columns of a b-banded strategy that are b steps apart do not overlap. With the data cut into b
groups that take turns (cyclic Poisson sampling), the run is then ceil(T / b) steps of ordinary
DP-SGD at sampling probability b batch / data (arXiv 2306.08153, section 5); b = 1 is DP-SGD. Other
strategies gain nothing here. The accounting is jax-privacy's, on privacy loss distributions.
"""

from functools import lru_cache

from momentdp._checks import count, number, refuse
from momentdp.mechanisms.mechanism import Mechanism

GRID = 1e-3  # discretisation of the privacy loss: rounded upwards, so coarse is safe
TOLERANCE = 1e-3  # on the noise multiplier


def bands_of(m: Mechanism) -> int | None:
    """How many diagonals of C are not zero where the structure knows it; else None."""
    diagonals = getattr(m.structure, "diagonals", None)
    if diagonals is not None:
        return len(diagonals)
    few = getattr(m.structure, "_strategy_coef", None)
    return None if few is None else len(few)


def amplified_multiplier(
    m: Mechanism, epsilon: float, delta: float, *, data_size: int, batch_size: int
) -> float | None:
    """Noise multiplier for (epsilon, delta) under (cyclic) Poisson sampling, or None.

    It goes with the sensitivity of a single participation and the add-or-remove-one relation.
    None where no amplification is known: a strategy that is not banded, or one with so many bands
    that a group is smaller than a batch.

    Args:
        data_size: examples; batch_size: expected examples a step.

    Raises:
        ValueError: sizes that are not whole numbers, or a batch larger than the data.
    """
    epsilon = number("epsilon", epsilon, 0.0, open_low=True)
    delta = number("delta", delta, 0.0, 1.0, open_low=True)
    data_size, batch_size = count("data_size", data_size), count("batch_size", batch_size)
    if batch_size > data_size:
        raise refuse("batch_size", batch_size, f"pass at most data_size = {data_size}")
    bands = bands_of(m)
    if bands is None or bands * batch_size > data_size:
        return None
    return _calibrated(epsilon, delta, data_size, batch_size, m.steps, bands)


@lru_cache
def _calibrated(epsilon, delta, data_size, batch_size, steps, bands) -> float:
    """A few seconds: kept, since members of a pool share their number of bands."""
    from jax_privacy import accounting

    config = accounting.PldAccountantConfig(value_discretization_interval=GRID)
    return accounting.calibrate_noise_multiplier(
        target_epsilon=epsilon,
        target_delta=delta,
        accountant=accounting.DpsgdTrainingAccountant(dp_accountant_config=config),
        batch_sizes=batch_size,
        num_updates=steps,
        num_samples=data_size,
        cycle_length=bands,
        initial_min_noise=0.1,
        tol=TOLERANCE,
    )
