"""RUN.yaml -> Run. Unknown keys and wrong types are refused in words that tell the mend.

Paths are relative to the file. Where a value comes from Python it is named `model.py:name`.
"""

import difflib
import importlib.util
import inspect
from pathlib import Path

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from momentdp import _yaml
from momentdp._checks import count, finite_array, number, refuse
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum, check_rates
from momentdp.dynamics.spectra import Spectrum
from momentdp.tool.run import NONLINEAR, Run

SPECTRA = {
    name: getattr(spectra, name) for name in ("isotropic", "log_spaced", "spike", "power_law")
}
KEYS = {
    "clipping": ("l2_clip_norm", "normalize_by", "neighboring_relation"),
    "optimizer": ("momentum", "nesterov", "dampening", "weight_decay", "optax", "linearise",
                  "preconditioner"),
    "learning_rate": ("schedule", "file", "optax"),
    "curvature": ("spectrum", "file", "matrix", "loss", "parameters", "data", "num_eigenvalues",
                  "num_probes", "seed", "negative", "source", "private_acknowledged"),
    "participation": ("min_sep", "max_participations"),
    "sampling": ("data_size", "batch_size"),
    "start": ("error", "loss", "file", "optimum"),
    "grid": ("momentum", "learning_rate_factor"),
    "strategies": None,
}  # fmt: skip
PLAIN = ("steps", "epsilon", "delta", "bands", "mechanisms")
REQUIRED = ("steps", "epsilon", "delta", "optimizer", "learning_rate", "curvature")


def read_run(path: str | Path) -> Run:
    """The run that a YAML file describes (keys: chapter 10, and ``KEYS``).

    Raises:
        ValueError: a key that is unknown, missing or given twice, a value of a wrong type, and
            whatever ``Run`` refuses; each names the file, the key, the value and the mend.
    """
    path = Path(path)
    given = _yaml.read_mapping(path)
    try:
        return _run(given, path.parent)
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from error


def _run(given: dict, folder: Path) -> Run:
    _known("", given, (*PLAIN, *KEYS))
    if missing := [key for key in REQUIRED if given.get(key) is None]:
        raise ValueError(f"{missing[0]}: missing; a run file needs {', '.join(REQUIRED)}")
    sections = {key: _section(key, given[key]) for key in KEYS if given.get(key) is not None}
    steps = count("steps", given["steps"])
    rates = _rates(sections["learning_rate"], steps, folder)
    optimizer, rates, notes = _optimizer(sections["optimizer"], rates, folder)
    spectrum, more = _curvature(sections["curvature"], folder)
    start = sections.get("start", {})
    names = given.get("mechanisms")
    if names is not None and not (isinstance(names, list) and all(type(n) is str for n in names)):
        raise refuse("mechanisms", repr(names), "write a list of names: [iid, bisr]")
    return Run(
        steps=steps,
        epsilon=given["epsilon"],
        delta=given["delta"],
        optimizer=optimizer,
        learning_rates=rates,
        spectrum=spectrum,
        clipping=sections.get("clipping", {}),
        participation=sections.get("participation", {}),
        sampling=_complete("sampling", sections.get("sampling")),
        bands=given.get("bands", 16),
        mechanisms=names,
        strategies={n: _value(v, folder) for n, v in sections.get("strategies", {}).items()},
        initial_error=_start(start, spectrum, folder),
        optimum=_value(start["optimum"], folder) if "optimum" in start else None,
        grid={k: finite_array(f"grid: {k}", v, 1) for k, v in sections.get("grid", {}).items()},
        notes=(*notes, *more),
    )


def _known(section: str, given: dict, known) -> None:
    lead = f"{section}: " if section else ""
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            mend = f"did you mean {close[0]}?" if close else "remove it"
            raise ValueError(f"{lead}{key}: not a key here; {mend} (known: {', '.join(known)})")


def _section(key: str, value) -> dict:
    if not isinstance(value, dict):
        hint = f". {NONLINEAR}" if key == "optimizer" and "adam" in str(value).lower() else ""
        raise refuse(key, repr(value), f"write it as {{name: value, ...}}{hint}")
    section = {str(k): v for k, v in value.items()}
    known = KEYS[key]
    if key == "optimizer" and str(section.get("name", "sgd")).lower() != "sgd":
        raise refuse("optimizer: name", repr(section["name"]), NONLINEAR)
    if key == "learning_rate" and section.get("schedule") in schedules.FAMILIES:
        known = (*known, *_options(schedules.FAMILIES[section["schedule"]], "steps"))
    if key == "curvature" and section.get("spectrum") in SPECTRA:
        known = (*known, "modes", *_options(SPECTRA[section["spectrum"]], "d"))
    if known is not None:
        _known(key, section, known)
    return section


def _options(function, left_out: str) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != left_out]


def _one_of(key: str, section: dict, ways: tuple[str, ...]) -> str:
    chosen = [way for way in ways if way in section]
    if len(chosen) != 1:
        raise refuse(key, ", ".join(chosen) or "none", f"give exactly one of {', '.join(ways)}")
    return chosen[0]


def _complete(key: str, section: dict | None) -> dict | None:
    if section is not None and set(section) != set(KEYS[key]):
        raise refuse(key, ", ".join(section) or "nothing", f"give both {' and '.join(KEYS[key])}")
    return section


def _call(key: str, function, *arguments, **options):
    try:
        return function(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{key}: {error}") from error
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _value(value, folder: Path):
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
        raise refuse("file", value, f"give a .npy, a .csv of numbers, or model.py:name ({error})") from None  # fmt: skip


def _from_python(path: Path, name: str):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except Exception as error:  # the user's code: whatever it raises
        raise refuse(
            "file", path.name, f"it has to run: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        raise refuse("file", f"{path.name}:{name}", f"define {name} in {path.name}")
    return getattr(module, name)


def _rates(section: dict, steps: int, folder: Path):
    way = _one_of("learning_rate", section, ("schedule", "file", "optax"))
    if way == "schedule":
        name = section["schedule"]
        if name not in schedules.FAMILIES:
            raise refuse("learning_rate: schedule", repr(name), f"choose one of {', '.join(schedules.FAMILIES)}")  # fmt: skip
        options = {k: v for k, v in section.items() if k != "schedule"}
        return _call("learning_rate", schedules.FAMILIES[name], steps, **options)
    value = _value(section[way], folder)
    if way == "optax":
        return _call("learning_rate: optax", schedules.from_optax, value, steps)
    return _call("learning_rate: file", check_rates, value)


def _optimizer(section: dict, rates, folder: Path):
    """(optimizer, rates, notes); a linearised Adam is heavy ball at other rates."""
    if "optax" in section:
        if len(section) > 1:
            raise refuse(
                "optimizer", ", ".join(section), "give optax alone: its code says the rest"
            )
        factory = _value(section["optax"], folder)
        if not callable(factory):
            raise refuse("optimizer: optax", section["optax"], "name a function of the schedule")
        return LinearOptimizer.from_optax(factory), rates, []
    if "linearise" not in section:
        return _call("optimizer", Momentum, **section), rates, []
    if section["linearise"] != "adam" or set(section) != {
        "linearise",
        "momentum",
        "preconditioner",
    }:
        mend = "give {linearise: adam, momentum: b1, preconditioner: file}, one value a step"
        raise refuse("optimizer", ", ".join(section), mend)
    b1 = number("optimizer: momentum", section["momentum"], 0.0, 1.0)
    scale = finite_array("optimizer: preconditioner", _value(section["preconditioner"], folder), 1)
    if scale.shape != rates.shape or scale.min() <= 0:
        raise refuse("optimizer: preconditioner", f"{len(scale)} values from {scale.min():g}", f"give {len(rates)} values > 0")  # fmt: skip
    corrected = rates / (scale * (1 - b1 ** np.arange(1, len(rates) + 1)))
    note = "Linearisation: Adam with its preconditioner frozen along the recorded run, one value a step for all coordinates. Nothing here is exact for Adam itself."  # fmt: skip
    return Momentum(b1, dampening=b1), corrected, [note]


def _curvature(section: dict, folder: Path) -> tuple[Spectrum, list[str]]:
    way = _one_of("curvature", section, ("spectrum", "file", "matrix", "loss"))
    source, negative = section.get("source"), section.get("negative", "error")
    if source not in (None, "public", "private"):
        raise refuse("curvature: source", repr(source), "write public or private")
    if way == "loss" and source is None:
        raise refuse("curvature: source", None, "say whether the data are public or private")
    notes = []
    if source == "private":
        if section.get("private_acknowledged") is not True:
            raise refuse("curvature: source", "private", "curvature of protected examples is a release of its own (H.7) that epsilon does not cover: estimate it from public data, or set private_acknowledged: true")  # fmt: skip
        notes.append("Curvature comes from protected examples: its privacy cost is not in epsilon (H.7).")  # fmt: skip
    elif way in ("file", "matrix") and source is None:
        notes.append("The run file does not say where the curvature comes from: it is taken as public (H.7).")  # fmt: skip
    if way == "spectrum":
        name = section["spectrum"]
        if name not in SPECTRA:
            raise refuse("curvature: spectrum", repr(name), f"choose one of {', '.join(SPECTRA)}")
        options = {k: v for k, v in section.items() if k not in KEYS["curvature"]}
        if "modes" not in options:
            raise refuse("curvature: modes", None, "give the number of eigenvalues")
        return _call("curvature", SPECTRA[name], options.pop("modes"), **options), notes
    if way == "loss":
        return _call("curvature: loss", _estimated, section, folder, negative), notes
    value = _value(section[way], folder)
    if way == "matrix":
        return _call("curvature: matrix", spectra.from_matrix, value, negative), notes
    columns = np.atleast_2d(np.asarray(value, dtype=float).T)
    weights = columns[1] if len(columns) == 2 else None
    return _call("curvature: file", Spectrum, columns[0], weights, negative), notes


def _estimated(section: dict, folder: Path, negative: str) -> Spectrum:
    """Lanczos and a trace estimate from loss(parameters, data); objects or functions making them."""
    for key in ("parameters", "data"):
        if key not in section:
            raise refuse(f"curvature: {key}", None, "name it beside loss: model.py:name")
    made = {k: _value(section[k], folder) for k in ("loss", "parameters", "data")}
    parameters, data = (made[k]() if callable(made[k]) else made[k] for k in ("parameters", "data"))
    flat, unravel = ravel_pytree(parameters)
    gradient = jax.grad(lambda theta: made["loss"](unravel(theta), data))
    return spectra.from_hvp(
        lambda v: jax.jvp(gradient, (flat,), (v,))[1],
        len(flat),
        min(count("num_eigenvalues", section.get("num_eigenvalues", 20)), len(flat) - 1),
        section.get("num_probes", 32),
        jax.random.key(count("seed", section.get("seed", 0), 0)),
        negative,
    )


def _start(section: dict, spectrum: Spectrum, folder: Path):
    """e_0: one size in all modes from `error`, or from the loss above the optimum; or a file."""
    if not section:
        return None
    way = _one_of("start", section, ("error", "loss", "file"))
    if way == "file":
        return _value(section["file"], folder)
    size = number(f"start: {way}", section[way], 0.0)
    trace = float(spectrum.multiplicities @ spectrum.eigenvalues)
    if way == "loss" and trace == 0:
        raise refuse("start: loss", size, "a loss without curvature has no start; leave it out")
    return size if way == "error" else np.sqrt(2 * size / trace)
