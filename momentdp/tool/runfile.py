"""RUN.yaml -> Run. Unknown keys and wrong types are refused in words that tell the mend.

Paths are relative to the file. Where a value comes from Python it is named `model.py:name`.
"""

import difflib
import inspect
from pathlib import Path

import numpy as np

from momentdp import _yaml
from momentdp._checks import count, finite_array, number, refuse
from momentdp.dynamics import schedules
from momentdp.dynamics.optimizers import LinearOptimizer, Momentum, check_rates
from momentdp.dynamics.spectra import Spectrum
from momentdp.tool.run import NONLINEAR, Run
from momentdp.tool.sources import CURVATURE, SPECTRA, call, curvature, one_of, read_value

KEYS = {
    "clipping": ("l2_clip_norm", "normalize_by", "neighboring_relation"),
    "optimizer": ("momentum", "nesterov", "dampening", "weight_decay", "optax", "linearise",
                  "preconditioner"),
    "learning_rate": ("schedule", "file", "optax"),
    "curvature": CURVATURE,
    "participation": ("min_sep", "max_participations"),
    "sampling": ("data_size", "batch_size"),
    "start": ("error", "loss", "file", "optimum"),
    "grid": ("momentum", "learning_rate_factor"),
    "strategies": None,
}  # fmt: skip
LINEARISED = (
    "Linearisation: Adam with its preconditioner frozen along the recorded run, one value a step "
    "for all coordinates. Nothing here is exact for Adam itself."
)
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
    spectrum, more = curvature(sections["curvature"], folder)
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
        strategies={n: read_value(v, folder) for n, v in sections.get("strategies", {}).items()},
        initial_error=_start(start, spectrum, folder),
        optimum=read_value(start["optimum"], folder) if "optimum" in start else None,
        grid={k: finite_array(f"grid: {k}", v, 1) for k, v in sections.get("grid", {}).items()},
        notes=(*notes, *more),
    )


def _known(section: str, given: dict, known) -> None:
    lead = f"{section}: " if section else ""
    for key in given:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1, 0.5)
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
    for way, families in (("schedule", schedules.FAMILIES), ("spectrum", SPECTRA)):
        if way in section and way in (known or ()):
            if section[way] not in families:
                mend = f"choose one of {', '.join(families)}"
                raise refuse(f"{key}: {way}", repr(section[way]), mend)
            options = inspect.signature(families[section[way]]).parameters
            known = (*known, *("modes" if o == "d" else o for o in options if o != "steps"))
    if known is not None:
        _known(key, section, known)
    return section


def _complete(key: str, section: dict | None) -> dict | None:
    if section is not None and set(section) != set(KEYS[key]):
        raise refuse(key, ", ".join(section) or "nothing", f"give both {' and '.join(KEYS[key])}")
    return section


def _rates(section: dict, steps: int, folder: Path):
    way = one_of("learning_rate", section, ("schedule", "file", "optax"))
    if way == "schedule":
        name = section["schedule"]
        options = {k: v for k, v in section.items() if k != "schedule"}
        return call("learning_rate", schedules.FAMILIES[name], steps, **options)
    value = read_value(section[way], folder)
    if way == "optax":
        return call("learning_rate: optax", schedules.from_optax, value, steps)
    return call("learning_rate: file", check_rates, value)


def _optimizer(section: dict, rates, folder: Path):
    """(optimizer, rates, notes); a linearised Adam is heavy ball at other rates."""
    if "optax" in section:
        if len(section) > 1:
            mend = "give optax alone: its code says the rest"
            raise refuse("optimizer", ", ".join(section), mend)
        factory = read_value(section["optax"], folder)
        if not callable(factory):
            raise refuse("optimizer: optax", section["optax"], "name a function of the schedule")
        return LinearOptimizer.from_optax(factory), rates, []
    if "momentum" not in section:
        raise refuse("optimizer: momentum", None, "give it (0 for plain SGD), or optax")
    if "linearise" not in section:
        return call("optimizer", Momentum, **section), rates, []
    keys = {"linearise", "momentum", "preconditioner"}
    if section["linearise"] != "adam" or set(section) != keys:
        mend = "give {linearise: adam, momentum: b1, preconditioner: file}, one value a step"
        raise refuse("optimizer", ", ".join(section), mend)
    b1 = number("optimizer: momentum", section["momentum"], 0.0, 1.0)
    recorded = read_value(section["preconditioner"], folder)
    scale = finite_array("optimizer: preconditioner", recorded, 1)
    if scale.shape != rates.shape or scale.min() <= 0:
        found = f"{len(scale)} values from {scale.min():g}"
        raise refuse("optimizer: preconditioner", found, f"give {len(rates)} values above 0")
    corrected = rates / (scale * (1 - b1 ** np.arange(1, len(rates) + 1)))
    return Momentum(b1, dampening=b1), corrected, [LINEARISED]


def _start(section: dict, spectrum: Spectrum, folder: Path):
    """e_0: one size in all modes from `error`, or from the loss above the optimum; or a file."""
    if not section:
        return None
    way = one_of("start", section, ("error", "loss", "file"))
    if way == "file":
        return read_value(section["file"], folder)
    size = number(f"start: {way}", section[way], 0.0)
    trace = float(spectrum.multiplicities @ spectrum.eigenvalues)
    if way == "loss" and trace == 0:
        raise refuse("start: loss", size, "a loss without curvature has no start; leave it out")
    return size if way == "error" else np.sqrt(2 * size / trace)
