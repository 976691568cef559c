"""Each number that the paper reports, beside ours, with a verdict that is computed, never typed.

``data/reported.csv`` holds what the paper prints. ``data/ours.csv`` holds, by the same ids, our
value, the tolerance declared for it (empty: half a unit of the last printed digit), the number of
settings that were tried before it agreed, a reason where the paper does not say enough to compute
it, a reason where it could not but agree, and a note. A row of ours without a value declares a
tolerance ahead of a run.
"""

import csv
import hashlib
import importlib
import os
import tempfile
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd

from momentdp import _checks

DATA = Path(__file__).parent / "data"
KINDS = ("count", "rank", "number", "bound", "label")
VERDICTS = ("exact", "within tolerance", "same sign and rank", "matched after fitting")
VERDICTS += ("not reproduced", "under-specified", "not yet")
COLUMNS = "id where kind reported ours tolerance verdict settings_tried note".split()

# Comparisons that the paper draws: the rows below each of these ids are one ordering.
ORDERINGS = (
    *(f"grid.{measure}" for measure in ("pairwise", "kendall", "regret", "top1")),
    *(f"heldout.{split}" for split in ("momentum", "schedule", "kappa1000", "bisr")),
    *(f"winners.{schedule}" for schedule in ("constant", "cosine", "warmup_cosine")),
    *(f"logistic.{measure}" for measure in ("pairwise", "regret")),  # of top-1 it claims a tie
)

# Modules whose ledger_rows() -> dict id -> value recompute rows, or read them off results/.
STUDIES = (
    "momentdp.studies.identity",
    "momentdp.studies.crossovers",
    "momentdp.studies.validation",
    "momentdp.studies.quadratic_tables",
    "momentdp.studies.logistic_tables",
    "momentdp.studies.cnn_live",
    "momentdp.studies.cnn_tables",
    "momentdp.studies.solvers",
)

# The paper does not change: a digit that does was changed by accident.
REPORTED_SHA256 = "2672d5b0ca843c5a684f2f13d7f46310af747750e4073849d198c1910e8face6"

_REPORTED = "id where quantity kind reported se unit conditions".split()
_OURS = "id ours tolerance settings_tried under_specified by_construction note".split()


def load(folder: Path = DATA, *, details: bool = False) -> pd.DataFrame:
    """The ledger, one row a reported number, in the paper's order.

    Args:
        folder: where reported.csv and ours.csv lie.
        details: also the columns quantity, se, unit, conditions, under_specified, by_construction
            and same_order.

    Returns:
        Columns id, where, kind, reported, ours (numbers, or text for labels; NaN while not yet),
        tolerance (absolute, in the unit of the row), verdict, settings_tried (0: not yet), note.

    Raises:
        ValueError: an id that is repeated or that the paper does not report, an unknown kind or
            column, a value that is not a number where the paper's is one.
    """
    rows = _read(folder / "reported.csv", _REPORTED)
    ours = _read(folder / "ours.csv", _OURS)
    if unknown := sorted(set(ours["id"]) - set(rows["id"])):
        raise _checks.refuse("ours.csv id", ", ".join(unknown), "use ids of reported.csv")
    rows = rows.merge(ours, on="id", how="left").fillna("")
    rows = pd.DataFrame([_typed(row) for row in rows.to_dict("records")]).astype(
        {"reported": object, "ours": object}
    )
    rows["same_order"] = _same_order(rows)
    rows["verdict"] = [verdict(row) for row in rows.to_dict("records")]
    extra = [*_REPORTED[2:3], *_REPORTED[5:], *_OURS[4:6], "same_order"]
    return rows[COLUMNS + extra * details]


def counts() -> pd.DataFrame:
    """Verdict -> its rows, and how many of them could not but agree; "all" below."""
    rows = load(details=True)
    found = rows["by_construction"].ne("").groupby(rows["verdict"]).agg(["size", "sum"])
    found = found.reindex(VERDICTS, fill_value=0).set_axis(["rows", "by construction"], axis=1)
    return pd.concat([found, found.sum().to_frame("all").T]).rename_axis("verdict")


def verdict(row: Mapping) -> str:
    """One of VERDICTS, from a row of ``load(details=True)``.

    - under-specified: the row gives a reason why the paper's number cannot be computed;
    - not yet: no value of ours;
    - exact: the same label; the same number to 1e-9, as for counts and ranks; a bound that holds;
    - within tolerance: a number no further from the paper's than the tolerance;
    - same sign and rank: neither, yet every number of the paper's comparison has its sign
      and no two of them are in another order;
    - matched after fitting: any of these, but more than one setting was tried;
    - not reproduced: anything else.
    """
    reported, ours = row["reported"], row["ours"]
    if row.get("under_specified"):
        return "under-specified"
    if pd.isna(ours):
        return "not yet"
    if row["kind"] == "label":
        exact = close = ours == reported
    elif row["kind"] == "bound":
        exact = close = ours <= reported
    else:
        exact = abs(ours - reported) <= 1e-9 * abs(reported)
        close = exact or abs(ours - reported) <= row["tolerance"] * (1 + 1e-9)
    if close and row["settings_tried"] > 1:
        return "matched after fitting"
    if close:
        return "exact" if exact else "within tolerance"
    if not row.get("same_order"):
        return "not reproduced"
    return "same sign and rank" if row["settings_tried"] <= 1 else "matched after fitting"


def record(values: Mapping[str, object], folder: Path = DATA, **fields: object) -> None:
    """Write our values, by id, into ours.csv: all of them or, if one is refused, none.

    Tolerances, settings tried, reasons and notes that are there stay, unless given in ``fields``
    (names of columns of ours.csv), which then hold for all ids in ``values``. Numbers are kept to
    six significant digits: further ones are not the same on every machine.

    Raises:
        ValueError: what :func:`load` refuses, or a field that is no column.
    """
    if extra := sorted(set(fields) - set(_OURS[2:])):
        raise _checks.refuse("fields", ", ".join(extra), f"use {', '.join(_OURS[2:])}")
    rows = _read(folder / "ours.csv", _OURS).set_index("id").to_dict("index")
    for identity, value in values.items():
        text = value if isinstance(value, str) else f"{value:.6g}"
        kept = rows.get(identity, dict.fromkeys(_OURS[1:], ""))
        rows[identity] = kept | {"ours": text} | {k: str(v) for k, v in fields.items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        new = Path(scratch)
        with (new / "ours.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, _OURS, lineterminator="\n")
            writer.writeheader()
            writer.writerows({"id": identity} | rows[identity] for identity in sorted(rows))
        (new / "reported.csv").write_bytes((folder / "reported.csv").read_bytes())
        load(new)
        os.replace(new / "ours.csv", folder / "ours.csv")


def fresh(studies: tuple[str, ...] = STUDIES) -> dict[str, object]:
    """The values that the studies compute now, by id.

    Raises:
        ValueError: an id that two studies claim.
    """
    values: dict[str, object] = {}
    for study in studies:
        rows = importlib.import_module(study).ledger_rows()
        if twice := sorted(values.keys() & rows.keys()):
            raise _checks.refuse(study, ", ".join(twice), "let one study own each id")
        values |= rows
    return values


def update() -> None:
    """Recompute what the studies know and record it."""
    record(fresh())


def stale(values: Mapping[str, object], folder: Path = DATA) -> list[str]:
    """Ids whose recorded value is not the one in ``values``, beyond rounding (1e-4 relative)."""
    recorded = load(folder).set_index("id")["ours"]

    def differs(old: object, new: object) -> bool:
        if isinstance(old, str) or isinstance(new, str):
            return old != new
        return not np.isclose(old, new, rtol=1e-4, atol=1e-12)

    return [identity for identity, new in values.items() if differs(recorded[identity], new)]


def verify(folder: Path = DATA) -> None:
    """Raise ValueError if the paper's numbers were changed or a row of ours is malformed."""
    digest = hashlib.sha256((folder / "reported.csv").read_bytes()).hexdigest()
    if digest != REPORTED_SHA256:
        raise _checks.refuse("reported.csv SHA-256", digest, f"restore {REPORTED_SHA256}")
    load(folder)


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    """A CSV as text, with exactly these columns and no id twice."""
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    if list(rows.columns) != columns:
        raise _checks.refuse(f"{path.name} columns", list(rows.columns), f"use {columns}")
    if len(twice := rows.loc[rows["id"].duplicated(), "id"]):
        raise _checks.refuse(f"{path.name} id", ", ".join(twice), "give each id one row")
    return rows


def _typed(row: dict[str, str]) -> dict[str, object]:
    """The row with numbers for text, checked."""
    identity, kind = row["id"], row["kind"]
    if kind not in KINDS:
        raise _checks.refuse(f"{identity} kind", repr(kind), f"use one of {', '.join(KINDS)}")

    def parsed(column: str, low: float = -np.inf) -> float | int:
        try:
            value = float(row[column])
        except ValueError:
            value = np.nan
        if not (np.isfinite(value) and value >= low):
            mend = "give a finite number" + (", not negative" if low == 0 else "")
            raise _checks.refuse(f"{identity} {column}", repr(row[column]), mend)
        return int(value) if kind in ("count", "rank") and value.is_integer() else value

    label, missing = kind == "label", not row["ours"]
    if row["tolerance"]:
        tolerance = parsed("tolerance", 0.0)
    elif kind == "number":
        tolerance = 0.5 * 10.0 ** int(Decimal(row["reported"]).as_tuple().exponent)
    else:
        tolerance = np.nan if label else 0.0
    if not (tried := row["settings_tried"] or str(int(not missing))).isdigit():
        raise _checks.refuse(f"{identity} settings_tried", repr(tried), "give a whole number")
    values = {
        "reported": row["reported"] if label else parsed("reported"),
        "ours": np.nan if missing else row["ours"] if label else parsed("ours"),
    }
    return row | values | {"tolerance": tolerance, "settings_tried": int(tried)}


def _same_order(rows: pd.DataFrame) -> pd.Series:
    """Whether a row's ordering is complete in ours with the paper's signs and order."""
    same = pd.Series(False, index=rows.index)
    for ordering in ORDERINGS:
        members = rows["id"].str.startswith(f"{ordering}.")
        reported = rows.loc[members, "reported"].to_numpy(dtype=float)
        ours = rows.loc[members, "ours"].to_numpy(dtype=float)
        paper_order = np.sign(np.subtract.outer(reported, reported))
        our_order = np.sign(np.subtract.outer(ours, ours))
        # Ties in the paper are not a claim about order; a missing value (NaN) agrees with nothing.
        agrees = np.all(our_order[paper_order != 0] == paper_order[paper_order != 0])
        same[members] = bool(agrees and np.all(np.sign(ours) == np.sign(reported)))
    return same
