"""Curvature as eigenvalues with multiplicities: all that the loss needs of its Hessian."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from matfree import decomp, stochtrace
from numpy.typing import ArrayLike

from momentdp._checks import count, finite_array, number, refuse, symmetric


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues of a Hessian (units: loss / parameter^2) and how often each one occurs.

    Args:
        eigenvalues: (modes,) not negative.
        multiplicities: (modes,) positive weights; 1 each when left out.
        negative: "error" refuses negative eigenvalues, "clip" sets them to zero (as NoiseCurve's
            authors do for the indefinite Hessian of a network).

    Raises:
        ValueError: entries that are not finite, negative, or of mismatched shapes.
    """

    eigenvalues: ArrayLike
    multiplicities: ArrayLike | None = None
    negative: str = "error"

    def __post_init__(self):
        values = finite_array("eigenvalues", self.eigenvalues, 1)
        if self.negative not in ("error", "clip"):
            raise refuse("negative", repr(self.negative), 'pass "error" or "clip"')
        if self.negative == "clip":
            values = np.maximum(values, 0.0)
        elif values.min() < 0:
            raise refuse(
                "eigenvalues", f"{values.min():.6g}", 'pass values >= 0, or negative="clip"'
            )
        weights = self.multiplicities
        weights = (
            np.ones_like(values) if weights is None else finite_array("multiplicities", weights, 1)
        )
        if weights.shape != values.shape or weights.min() <= 0:
            raise refuse(
                "multiplicities",
                f"shape {weights.shape}, smallest {weights.min():.3g}",
                f"pass {len(values)} positive weights",
            )
        for name, array in (("eigenvalues", values), ("multiplicities", weights)):
            array.setflags(write=False)
            object.__setattr__(self, name, array)

    def __repr__(self) -> str:
        low, high = self.eigenvalues.min(), self.eigenvalues.max()
        modes, d = len(self.eigenvalues), self.multiplicities.sum()
        return f"Spectrum({modes} modes of {d:g} dimensions, {low:.4g} to {high:.4g})"

    @property
    def largest(self) -> float:
        """lambda_max."""
        return float(self.eigenvalues.max())

    def scaled(self, factor: float) -> "Spectrum":
        """The spectrum of ``factor`` times the Hessian."""
        scale = number("factor", factor, 0.0, open_low=True)
        return Spectrum(scale * self.eigenvalues, self.multiplicities)


def as_spectrum(spectrum) -> Spectrum:
    """A Spectrum as it is; an array of eigenvalues with multiplicity 1 each."""
    return spectrum if isinstance(spectrum, Spectrum) else Spectrum(spectrum)


def isotropic(d: int, largest: float = 1.0) -> Spectrum:
    """All d eigenvalues equal: one mode of multiplicity d."""
    return Spectrum([number("largest", largest, 0.0)], [float(count("d", d))])


def log_spaced(d: int, condition_number: float, largest: float = 1.0) -> Spectrum:
    """d eigenvalues evenly spaced in logarithm from largest / condition_number to largest."""
    kappa = number("condition_number", condition_number, 1.0)
    d = count("d", d)
    exponents = np.linspace(-np.log10(kappa), 0.0, d) if d > 1 else np.zeros(1)
    return Spectrum(number("largest", largest, 0.0, open_low=True) * 10.0**exponents)


def spike(d: int, spikes: int = 1, bulk: float = 0.01, largest: float = 1.0) -> Spectrum:
    """``spikes`` eigenvalues at largest, the other d - spikes at bulk * largest (a stress case)."""
    d, spikes = count("d", d, 2), count("spikes", spikes)
    if spikes >= d:
        raise refuse("spikes", spikes, f"pass fewer than d = {d}")
    return Spectrum(np.array([bulk, 1.0]) * largest, [float(d - spikes), float(spikes)])


def power_law(d: int, exponent: float = 2.0, largest: float = 1.0) -> Spectrum:
    """largest * k^-exponent, k = 1..d (a stress case: the shape seen in networks)."""
    ranks = np.arange(count("d", d), 0, -1, dtype=np.float64)
    return Spectrum(largest * ranks ** -number("exponent", exponent, 0.0))


def from_matrix(H, negative: str = "error") -> Spectrum:
    """The eigenvalues of a symmetric (d, d) Hessian. Rounding below 1e-12 lambda_max is zero."""
    values = np.linalg.eigvalsh(symmetric("H", H))
    tiny = 1e-12 * max(abs(values).max(), 1e-300)
    return Spectrum(np.where(abs(values) < tiny, 0.0, values), negative=negative)


def from_hvp(
    hvp, dim: int, num_eigenvalues: int, num_probes: int, key, negative: str = "error"
) -> Spectrum:
    """The top of a spectrum and its trace, from Hessian-vector products alone.

    Args:
        hvp: v (dim,) -> H v (dim,), traceable by jax.
        dim: parameters.
        num_eigenvalues: Lanczos steps; their Ritz values become modes.
        num_probes: Hutchinson probes for the trace.
        key: jax.random key (start vector and probes).
        negative: "error" or "clip", as in Spectrum; Ritz values above -1e-3 of the largest are
            rounding (the products may be float32) and count as zero.

    The rest of the trace becomes one eigenvalue with multiplicity dim - num_eigenvalues: the bulk.
    """
    dim, top = count("dim", dim, 2), count("num_eigenvalues", num_eigenvalues)
    if top >= dim:
        raise refuse("num_eigenvalues", top, f"pass fewer than dim = {dim}; or use from_matrix")
    start_key, probe_key = jax.random.split(key)
    start = jax.random.normal(start_key, (dim,))
    lanczos = decomp.tridiag_sym(top, materialize=True, reortho="full")
    ritz = np.linalg.eigvalsh(np.asarray(lanczos(hvp, start / jnp.linalg.norm(start)).J_small))
    sampler = stochtrace.sampler_signs(jnp.zeros(dim), num=count("num_probes", num_probes))
    estimate = stochtrace.estimator_monte_carlo(stochtrace.monte_carlo_trace(), sampler)
    bulk = max((float(estimate(hvp, probe_key)) - ritz.sum()) / (dim - top), 0.0)
    values = np.concatenate([[bulk], _without_rounding(ritz)]).astype(np.float64)
    weights = np.concatenate([[float(dim - top)], np.ones(top)])
    return Spectrum(values, weights, negative=negative)


def quadrature(
    hvp, dim: int, num_steps: int, num_probes: int, key
) -> tuple[Float[np.ndarray, "probes steps"], Float[np.ndarray, "probes steps"]]:
    """Nodes and weights: the sum of w f(node) estimates tr f(H) (Ubaru, Chen and Saad 2017).

    Stochastic Lanczos quadrature: each probe is a vector of random signs, its nodes the Ritz values
    of its own Lanczos run and so of either sign.

    Args:
        hvp, dim, key: as in `from_hvp`.
        num_steps, num_probes: Lanczos steps of a probe, and probes.

    Returns:
        Nodes (loss / parameter^2) and weights (directions; those of all probes add up to dim).

    Raises:
        ValueError: counts that are not whole numbers, more steps than dim.
    """
    dim, steps = count("dim", dim, 2), count("num_steps", num_steps)
    probes = count("num_probes", num_probes)
    if steps > dim:
        raise refuse("num_steps", steps, f"pass at most dim = {dim}")
    lanczos = decomp.tridiag_sym(steps, materialize=True, reortho="full")
    tridiagonal = jax.jit(lambda start: lanczos(hvp, start).J_small)  # compiled once, not a probe
    nodes, weights = np.empty((2, probes, steps))
    for row, probe_key in enumerate(jax.random.split(key, probes)):
        start = jax.random.rademacher(probe_key, (dim,), jnp.zeros(()).dtype) / np.sqrt(dim)
        nodes[row], vectors = np.linalg.eigh(np.asarray(tridiagonal(start), np.float64))
        weights[row] = dim / probes * vectors[0] ** 2
    return nodes, weights


def from_quadrature(
    hvp, dim: int, num_steps: int, num_probes: int, key, negative: str = "error"
) -> Spectrum:
    """A spectrum for damages, from Hessian-vector products alone: what lies between is kept.

    `from_hvp` puts what its Lanczos values leave of the trace at one small eigenvalue, where noise
    is damped least: too much where many middling eigenvalues are, and too little where negative
    ones cancel in the trace. Here every probe of `num_steps` products spreads its share of the dim
    eigenvalues over its own Ritz values.

    Args:
        hvp, dim, key, negative: as in `from_hvp`, also for rounding below zero.
        num_steps: Lanczos steps of each probe.
        num_probes: vectors of random signs.

    Raises:
        ValueError: as `quadrature`, and as Spectrum where eigenvalues are negative.
    """
    nodes, weights = (x.ravel() for x in quadrature(hvp, dim, num_steps, num_probes, key))
    kept = weights > 0
    return Spectrum(_without_rounding(nodes)[kept], weights[kept], negative=negative)


def _without_rounding(ritz: Float[np.ndarray, " modes"]) -> Float[np.ndarray, " modes"]:
    """Ritz values of products that may be float32: just below zero is zero."""
    return np.where((ritz < 0) & (ritz > -1e-3 * abs(ritz).max()), 0.0, ritz)


BOOK = {
    "isotropic": isotropic(16),
    "log-spaced, kappa 10": log_spaced(16, 10.0),
    "log-spaced, kappa 100": log_spaced(16, 100.0),
    "log-spaced, kappa 1000": log_spaced(16, 1000.0),
    "spike": spike(16),
    "power law": power_law(16),
}
