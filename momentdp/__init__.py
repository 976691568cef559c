"""momentdp: which correlated-noise mechanism should I use for my optimizer?

The public names are listed here; ``momentdp.dynamics.core`` is the traceable jax core behind them.
"""

from momentdp import ledger
from momentdp.clipping_aware import (
    clipped_jacobian,
    clipped_path,
    clipping_aware_damage,
    clipping_aware_factor,
)
from momentdp.damage import damage, expected_loss, trajectory_damage
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum
from momentdp.dynamics.spectra import Spectrum
from momentdp.dynamics.transfer import transfer
from momentdp.evaluation import ranking, scores
from momentdp.evaluation.rank import damage_floor, rank
from momentdp.mechanisms.catalogue import catalogue
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.privacy import noise_multiplier, noise_stddev
from momentdp.studies import registry
from momentdp.synthesize import solve_p1, synthesize

__all__ = [
    "LinearOptimizer",
    "Mechanism",
    "Momentum",
    "Spectrum",
    "catalogue",
    "clipped_jacobian",
    "clipped_path",
    "clipping_aware_damage",
    "clipping_aware_factor",
    "damage",
    "damage_floor",
    "expected_loss",
    "ledger",
    "noise_multiplier",
    "noise_stddev",
    "rank",
    "ranking",
    "registry",
    "schedules",
    "scores",
    "solve_p1",
    "spectra",
    "synthesize",
    "trajectory_damage",
    "transfer",
]
__version__ = "0.1.0"
