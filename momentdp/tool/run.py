"""A training run as its owner knows it: every input checked before anything is computed."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from momentdp._checks import count, finite_array, number, refuse
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum, check_rates
from momentdp.dynamics.spectra import as_spectrum
from momentdp.dynamics.transfer import check_stability
from momentdp.mechanisms.catalogue import MEMBERS, PAPER
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.privacy import noise_stddev
from momentdp.sensitivity import check_pattern

LONG = 2048  # steps above which nothing that holds a (steps, steps) matrix is in the default pool
STRUCTURED = ("iid", "bisr", "lr_aware_sqrt", "nsr", "momentum_bisr")  # no matrix, no optimiser
NONLINEAR = (
    "Adam and its kin are not linear in the gradient, so no exact damage exists for them. What can "
    "be said instead: linearise along a recorded run, with the preconditioner frozen (optimizer: "
    "{linearise: adam, momentum: 0.9, preconditioner: rms.csv}, one sqrt(v) + eps a step); the "
    "report then says that it is a linearisation"
)


@dataclass(frozen=True, eq=False)
class Run:
    """One private training run; ``read_run`` makes it from a YAML file.

    Args:
        steps: T.
        epsilon, delta: privacy target.
        optimizer: Momentum or LinearOptimizer.
        learning_rates: (steps,).
        spectrum: curvature, a Spectrum or (modes,) eigenvalues.
        clipping: l2_clip_norm, normalize_by, neighboring_relation, as in ``rank``: with them damage
            is in the units of the user's loss.
        participation: min_sep, max_participations; left out, single participation.
        sampling: data_size and batch_size, if amplification by sampling is to count.
        bands: of the catalogue's and of synthesised strategies.
        mechanisms: names of the catalogue; left out, the pool ``paper``.
        strategies: name -> Mechanism, or what ``Mechanism.from_jax_privacy`` takes.
        initial_error: (modes,) e_0 in the eigenbasis, root-mean-square over a mode; needed for
            expected losses. optimum: (modes,) theta*, needed for them with weight decay.
        grid: momentum and learning_rate_factor, the values to try together.
        notes: what the report repeats.

    Raises:
        ValueError: whatever is missing, of a wrong type, or does not fit the rest.
    """

    steps: Any
    epsilon: Any
    delta: Any
    optimizer: Any
    learning_rates: Any
    spectrum: Any
    clipping: Mapping = field(default_factory=dict)
    participation: Mapping = field(default_factory=dict)
    sampling: Mapping | None = None
    bands: Any = 16
    mechanisms: Sequence[str] | None = None
    strategies: Mapping = field(default_factory=dict)
    initial_error: Any = None
    optimum: Any = None
    grid: Mapping = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __post_init__(self):
        count("steps", self.steps)
        number("epsilon", self.epsilon, 0.0, open_low=True)
        number("delta", self.delta, 0.0, 1.0, open_low=True)
        clipping = {k: float(v) if type(v) is int else v for k, v in self.clipping.items()}
        noise_stddev(self.epsilon, self.delta, **clipping)
        check_pattern(self.steps, *self._pattern())
        bands = min(count("bands", self.bands), self.steps)
        rates, spectrum = check_rates(self.learning_rates), as_spectrum(self.spectrum)
        if len(rates) != self.steps:
            mend = f"give one rate a step, {self.steps} of them, or set steps to {len(rates)}"
            raise refuse("learning_rate", f"{len(rates)} values", mend)
        if not isinstance(self.optimizer, (Momentum, LinearOptimizer)):
            raise refuse("optimizer", type(self.optimizer).__name__, NONLINEAR)
        notes = (*self.notes, *self._dynamics_notes(rates, spectrum), *self._pool_notes())
        checked = {
            "bands": bands,
            "clipping": clipping,
            "learning_rates": rates,
            "spectrum": spectrum,
            "strategies": self._own_strategies(),
            "initial_error": self._per_mode("initial_error", self.initial_error, spectrum),
            "optimum": self._per_mode("optimum", self.optimum, spectrum),
            "notes": notes,
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def is_repeated(self) -> bool:
        """Whether an example takes part more than once."""
        return check_pattern(self.steps, *self._pattern())[1] > 1

    @property
    def units(self) -> dict:
        """Its clipping as ``rank`` takes it, defaults filled in."""
        left_out = {"l2_clip_norm": 1.0, "normalize_by": 1.0}
        return left_out | {"neighboring_relation": "add_or_remove_one"} | dict(self.clipping)

    @property
    def pool(self) -> list[str]:
        """Names of the catalogue's mechanisms in this run."""
        if self.mechanisms is not None:
            return list(self.mechanisms)
        if self.steps <= LONG:
            return list(PAPER)
        names = [n for n in STRUCTURED if not (n == "nsr" and self.is_repeated)]
        is_momentum = isinstance(self.optimizer, Momentum)
        return [n for n in names if is_momentum or "momentum" not in MEMBERS[n][0]]

    def _pattern(self) -> tuple:
        pattern = dict(self.participation)
        return pattern.get("min_sep"), pattern.get("max_participations", 1)

    def _dynamics_notes(self, rates, spectrum) -> list[str]:
        """Refuses a nonlinear optimizer and an unstable constant rate; notes a passing one."""
        try:
            system = self.optimizer.system(rates)
        except ValueError as error:
            is_nonlinear = "not an affine map" in str(error)
            raise ValueError(f"{error}. {NONLINEAR}" if is_nonlinear else str(error)) from error
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_stability(system, spectrum, rates, allow_unstable=False)
        return [str(one.message) for one in caught]

    def _pool_notes(self) -> list[str]:
        if unknown := [name for name in self.pool if name not in MEMBERS]:
            mend = f"choose among {', '.join(MEMBERS)}"
            raise refuse("mechanisms", ", ".join(map(str, unknown)), mend)
        needs_momentum = [name for name in self.pool if "momentum" in MEMBERS[name][0]]
        if needs_momentum and not isinstance(self.optimizer, Momentum):
            mend = "leave it out: it is made for a momentum, which optax code does not name"
            raise refuse("mechanisms", needs_momentum[0], mend)
        if not self.pool and not self.strategies:
            raise refuse("mechanisms", "none", "name at least one, or leave the key out")
        if self.mechanisms is not None or self.steps <= LONG:
            return []
        left = ", ".join(name for name in PAPER if name not in self.pool)
        return [f"Left out at more than {LONG} steps, unless named under mechanisms: {left}."]

    def _own_strategies(self) -> dict[str, Mechanism]:
        own = {}
        for name, given in self.strategies.items():
            if name in self.pool:
                raise refuse(f"strategies: {name}", "a name of the catalogue", "rename yours")
            try:
                m = given if isinstance(given, Mechanism) else None
                m = m or Mechanism.from_jax_privacy(given, self.steps, name)
                own[name] = m.require_steps(self.steps).renamed(name)
            except (TypeError, ValueError) as error:
                raise ValueError(f"strategies: {name}: {error}") from error
        return own

    def _per_mode(self, name, value, spectrum):
        if value is None:
            return None
        given = np.asarray(value, dtype=float) if np.ndim(value) == 0 else value
        values = finite_array(name, given, np.ndim(given))
        if values.ndim == 0:
            return np.full(spectrum.eigenvalues.shape, float(values))
        if values.shape != spectrum.eigenvalues.shape:
            mend = f"give one value, or one a mode: {len(spectrum.eigenvalues)}"
            raise refuse(name, f"shape {values.shape}", mend)
        return values
