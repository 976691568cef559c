"""Where a run file's values come from: files, the user's Python code, and curvature in four ways."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from momentdp._checks import count, refuse
from momentdp.dynamics import spectra
from momentdp.dynamics.spectra import Spectrum

SPECTRA = {
    name: getattr(spectra, name) for name in ("isotropic", "log_spaced", "spike", "power_law")
}
CURVATURE = ("spectrum", "file", "matrix", "loss", "parameters", "data", "num_eigenvalues",
             "num_probes", "seed", "negative", "source", "private_acknowledged")  # fmt: skip
CLIP = "negative: clip, which sets them to zero as NoiseCurve's authors do"
PRIVATE = (
    "curvature of protected examples is a release of its own (H.7), which epsilon does not cover: "
    "estimate it from public data, or set private_acknowledged: true"
)


def one_of(key: str, section: dict, ways: tuple[str, ...]) -> str:
    """The one of ``ways`` that the section takes; ValueError for none or several."""
    chosen = [way for way in ways if way in section]
    if len(chosen) != 1:
        raise refuse(key, ", ".join(chosen) or "none", f"give exactly one of {', '.join(ways)}")
    return chosen[0]


def call(key: str, function, *arguments, **options):
    """The function's value; its refusals get the key in front."""
    try:
        return function(*arguments, **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {error}".replace('negative="clip"', CLIP)) from error


def read_value(value, folder: Path):
    """A number or list as it is; the array of a .npy or .csv file; an object of a .py file."""
    if not isinstance(value, str):
        return value
    file, _, name = value.partition(":")
    path = folder / file
    if not path.is_file():
        raise refuse("file", value, f"no such file in {folder.resolve().name}/; mend the path")
    if path.suffix == ".py" and name:
        return _from_python(path, name)
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.loadtxt(path, delimiter=",", ndmin=1)
    except (OSError, ValueError) as error:
        mend = f"give a .npy, a .csv of numbers, or model.py:name ({error})"
        raise refuse("file", value, mend) from None


def _from_python(path: Path, name: str):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # the user's code: whatever it raises
        mend = f"it has to run: {type(error).__name__}: {error}"
        raise refuse("file", path.name, mend) from error
    if not hasattr(module, name):
        raise refuse("file", f"{path.name}:{name}", f"define {name} in {path.name}")
    return getattr(module, name)


def curvature(section: dict, folder: Path) -> tuple[Spectrum, list[str]]:
    """The Spectrum of a run file, and what the report has to say about where it comes from."""
    way = one_of("curvature", section, ("spectrum", "file", "matrix", "loss"))
    source, negative = section.get("source"), section.get("negative", "error")
    if source not in (None, "public", "private"):
        raise refuse("curvature: source", repr(source), "write public or private")
    if way == "loss" and source is None:
        raise refuse("curvature: source", None, "say whether the data are public or private")
    notes = []
    if source == "private":
        if section.get("private_acknowledged") is not True:
            raise refuse("curvature: source", "private", PRIVATE)
        notes.append("Curvature comes from protected examples: its cost is not in epsilon (H.7).")
    elif way in ("file", "matrix") and source is None:
        notes.append("The source of the curvature is not stated: it is taken as public (H.7).")
    if negative == "clip":
        notes.append("Negative eigenvalues are set to zero, as NoiseCurve's authors do.")
    if way == "spectrum":
        name = section["spectrum"]
        options = {k: v for k, v in section.items() if k not in CURVATURE}
        if "modes" not in options:
            raise refuse("curvature: modes", None, "give the number of eigenvalues")
        return call("curvature", SPECTRA[name], options.pop("modes"), **options), notes
    if way == "loss":
        return call("curvature: loss", _estimated, section, folder, negative), notes
    value = read_value(section[way], folder)
    if way == "matrix":
        return call("curvature: matrix", spectra.from_matrix, value, negative), notes
    columns = np.atleast_2d(np.asarray(value, dtype=float).T)
    weights = columns[1] if len(columns) == 2 else None
    return call("curvature: file", Spectrum, columns[0], weights, negative), notes


def _estimated(section: dict, folder: Path, negative: str) -> Spectrum:
    """Lanczos and a trace estimate from loss(parameters, data); objects or functions making them."""
    for key in ("parameters", "data"):
        if key not in section:
            raise refuse(f"curvature: {key}", None, "name it beside loss: model.py:name")
    made = {k: read_value(section[k], folder) for k in ("loss", "parameters", "data")}
    parameters, data = (made[k]() if callable(made[k]) else made[k] for k in ("parameters", "data"))
    flat, unravel = ravel_pytree(parameters)
    gradient = jax.grad(lambda theta: made["loss"](unravel(theta), data))
    return spectra.from_hvp(
        jax.jit(lambda v: jax.jvp(gradient, (flat,), (v,))[1]),
        len(flat),
        min(count("num_eigenvalues", section.get("num_eigenvalues", 20)), len(flat) - 1),
        section.get("num_probes", 32),
        jax.random.key(count("seed", section.get("seed", 0), 0)),
        negative,
    )
