"""The frozen crossover cases (Appendix D): chosen by a rule before any simulation, then only read.

``registry.json`` says what each case is, ``arrays.npz`` holds the bytes that are simulated (C, eta,
lambda, under the SHA-256 of their content), ``registry.sha256`` the hashes of both files.

A case is a pair of mechanisms that exchange places between mu = 0 and a momentum with everything
else of an arm kept. A candidate leads by the threshold at one end and is behind by it at the other:
10% for the primary register, 5% (and not 10%) for the control. Candidates are taken in the order of
the SHA-256 of their own description, a lot that no outcome can influence, each unless it would break
a limit of diversity, until a register is full.
"""

import hashlib
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import xarray as xr

from momentdp._checks import refuse
from momentdp.damage import damage
from momentdp.dynamics import schedules, spectra
from momentdp.dynamics.optimizers import Momentum
from momentdp.mechanisms.mechanism import Mechanism
from momentdp.studies import discovery
from momentdp.studies.crossovers import ARMS, condition

FROZEN = Path(__file__).resolve().parents[1] / "data" / "registry"
SIZE = 12
REGISTERS = {"primary": (0.10, np.inf), "control": (0.05, 0.10)}  # smaller of both margins
# At most so many cases of a register with one value: two arms share it equally.
LIMITS = {"arm": 6, "el": 2, "momentum": 3, "schedule": 2, "spectrum": 3, "pair": 1, "mechanism": 3}
# One NoiseCurve and one dense: near duplicates would only be drawn twice.
COMPETITORS = tuple(
    name
    for name in discovery.LOOKS_AT
    if name not in ("dense_jax_privacy", "noisecurve_floor", "noisecurve_adam")
)
FIELDS = ("arm", "el", "momentum", "schedule", "spectrum", "first", "second")
ARRAYS = ("first", "second", "eigenvalues", "native_rates", "rates")


def candidates(reversals: xr.Dataset) -> pd.DataFrame:
    """Every reversal of arms (a) and (b) above the lower threshold: ``first`` leads at mu = 0,
    ``second`` at the momentum; in the order of the lot."""
    kept = reversals.sel(arm=["a", "b"])
    table = kept.to_dataframe().reset_index()
    table["smaller"] = table[["native", "margin"]].min(axis=1)
    table = table[table["smaller"] > REGISTERS["control"][0]].reset_index(drop=True)
    names = table["pair"].str.split(", ", expand=True).to_numpy()
    rows, ahead = np.arange(len(table)), np.where(table["leads"], 0, 1)
    table["first"], table["second"] = names[rows, ahead], names[rows, 1 - ahead]
    table["lot"] = [
        hashlib.sha256(describe(row).encode()).hexdigest()
        for row in table[list(FIELDS)].to_dict("records")
    ]
    return table.sort_values("lot").drop(columns=["leads", "lot"])


def describe(case) -> str:
    """One line that says which case it is; no two cases of a registry share it."""
    return " | ".join(
        f"{case[field]:g}" if field in ("el", "momentum") else case[field] for field in FIELDS
    )


def choose(table: pd.DataFrame) -> list[dict]:
    """The cases of each register, by the rule of this module.

    Raises:
        ValueError: the candidates do not fill a register under the limits.
    """
    chosen = []
    for register, (low, high) in REGISTERS.items():
        inside = table[(table["smaller"] > low) & (table["smaller"] <= high)]
        counts, cases = Counter(), []
        for row in inside.drop(columns="smaller").to_dict("records"):
            values = [(field, row[field]) for field in LIMITS if field in row]
            values += [("mechanism", row["first"]), ("mechanism", row["second"])]
            if all(counts[value] < LIMITS[value[0]] for value in values):
                counts.update(values)
                cases.append({"id": f"{register}-{len(cases) + 1:02d}", "register": register} | row)
            if len(cases) == SIZE:
                break
        else:
            raise refuse("candidates", f"{len(cases)} cases for {register}", "widen the limits")
        chosen += cases
    return chosen


def freeze(cases: list[dict], folder: Path = FROZEN) -> str:
    """Write the registry of these cases and the bytes that they stand for; the JSON's SHA-256."""
    arrays, rows = {}, []
    for index, case in enumerate(cases):
        row = {field: case[field] for field in ("id", "register", *FIELDS, "native", "margin")}
        row |= {"seeds": [2 * index, 2 * index + 1], "arrays": {}}
        for name, array in zip(ARRAYS, _numbers(case), strict=True):
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            arrays[digest], row["arrays"][name] = array, digest
        rows.append(row)
    folder.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    np.savez_compressed(packed, **{digest: arrays[digest] for digest in sorted(arrays)})
    return _write(rows, packed.getvalue(), folder)


def _numbers(case) -> list[np.ndarray]:
    """What ARRAYS names: C of both, then the conditions."""
    home = {axis: case[axis] for axis in ("el", "schedule", "spectrum")}
    strategies = [discovery.construct(case[name], **home).strategy_matrix for name in FIELDS[-2:]]
    return [*strategies, *_conditions(case)]


def _conditions(case) -> list[np.ndarray]:
    """Every eigenvalue, the rates at mu = 0 and those at the momentum."""
    eigenvalues = discovery.modes(spectra.BOOK[case["spectrum"]])
    family = schedules.FAMILIES[case["schedule"]]
    peaks = [condition(case["arm"], mu, case["el"])[1] for mu in (0.0, case["momentum"])]
    return [eigenvalues, *(family(discovery.STEPS, peak) for peak in peaks)]


def _write(rows: list[dict], packed: bytes, folder: Path) -> str:
    contents = {"registry.json": _canonical(rows), "arrays.npz": packed}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    lines = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    (folder / "registry.sha256").write_text(lines)
    return digests["registry.json"]


def _canonical(rows: list[dict]) -> bytes:
    return (json.dumps(rows, indent=1, sort_keys=True, allow_nan=False) + "\n").encode()


def _read(folder: Path) -> tuple[list[dict], dict[str, str]]:
    digests = {}
    for line in (folder / "registry.sha256").read_text().splitlines():
        recorded, name = line.split()
        digests[name] = found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != recorded:
            raise refuse(name, f"SHA-256 {found[:12]}...", f"restore {recorded[:12]}...")
    return json.loads((folder / "registry.json").read_text()), digests


def load(folder: Path = FROZEN) -> pd.DataFrame:
    """The frozen cases, a row each, indexed by id; ``attrs["sha256"]``: the hash of each file.

    Raises:
        ValueError: a file whose SHA-256 is not the recorded one.
    """
    rows, digests = _read(folder)
    table = pd.DataFrame(rows).set_index("id")[["register", *FIELDS, "native", "margin"]]
    table.attrs["sha256"] = digests
    return table


def damages(folder: Path = FROZEN) -> pd.DataFrame:
    """Damage of both mechanisms at both ends, from the frozen bytes by the adjoint route: columns
    (native | tested, first | second), a row a case."""
    rows, _ = _read(folder)
    with np.load(folder / "arrays.npz") as arrays:
        found = [_damages(row, {n: arrays[d] for n, d in row["arrays"].items()}) for row in rows]
    columns = pd.MultiIndex.from_product([["native", "tested"], ["first", "second"]])
    return pd.DataFrame(found, [row["id"] for row in rows], columns)


def _damages(row: dict, numbers: dict) -> list[float]:
    pair = [Mechanism.from_strategy_matrix(numbers[name], row[name]) for name in FIELDS[-2:]]
    ends = ((0.0, "native_rates"), (row["momentum"], "rates"))
    return [
        damage(m, Momentum(mu), numbers["eigenvalues"], numbers[rates])
        for mu, rates in ends
        for m in pair
    ]


def verify(folder: Path = FROZEN) -> None:
    """Check hashes, names, bytes and margins of the registry.

    Raises:
        ValueError: a wrong hash, a text that is not canonical, and, naming the case, an id or a
            description that is there twice, an unknown name, bytes that are not those of their
            hash, schedule or spectrum, a margin that is not what it says or below its threshold.
    """
    rows, _ = _read(folder)
    if _canonical(rows) != (folder / "registry.json").read_bytes():
        raise refuse("registry.json", "another layout", "write it sorted, indented by one")
    seen = set()
    with np.load(folder / "arrays.npz") as arrays:
        for row in rows:
            case = f"case {row['id']}"
            _verify_names(row, case)
            if seen & {row["id"], describe(row)}:
                raise refuse(case, "a duplicate", "keep one of them")
            seen |= {row["id"], describe(row)}
            _verify_numbers(row, case, arrays)


def _verify_names(row: dict, case: str) -> None:
    known = {"arm": ARMS, "schedule": schedules.FAMILIES, "spectrum": spectra.BOOK}
    known |= {"first": discovery.LOOKS_AT, "second": discovery.LOOKS_AT, "register": REGISTERS}
    for field, names in known.items():
        if row[field] not in names:
            raise refuse(f"{case}, {field}", repr(row[field]), f"use one of {', '.join(names)}")


def _verify_numbers(row: dict, case: str, arrays) -> None:
    numbers = {}
    for name, digest in row["arrays"].items():
        numbers[name] = array = arrays[digest] if digest in arrays else None
        if array is None or hashlib.sha256(array.tobytes()).hexdigest() != digest:
            raise refuse(f"{case}, {name}", "bytes of another hash", "restore arrays.npz")
    for name, expected in zip(ARRAYS[2:], _conditions(row), strict=True):
        found = numbers[name]
        if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-12, atol=0):
            raise refuse(f"{case}, {name}", "other numbers than its names say", "freeze it again")
    native, tested = np.reshape(_damages(row, numbers), (2, 2))
    low = REGISTERS[row["register"]][0]
    margins = {"native": native[1] / native[0] - 1, "margin": tested[0] / tested[1] - 1}
    for name, found in margins.items():
        if not (found > low and np.isclose(found, row[name], rtol=1e-6, atol=0)):
            mend = f"its bytes give {found:.6g}, and {low:g} is the least"
            raise refuse(f"{case}, {name}", row[name], mend)
