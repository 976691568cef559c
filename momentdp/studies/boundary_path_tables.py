"""What the records along runs of the boundary study say."""

from pathlib import Path

import numpy as np
import pandas as pd

from momentdp.studies.boundary_study import RESULTS
from momentdp.studies.boundary_tables import NAMES
from momentdp.studies.records import read_record


def _path(momentum: str, folder: Path) -> dict:
    return read_record(Path(folder) / f"path-{momentum}.json")


def largest_along(folder: Path = RESULTS) -> pd.DataFrame:
    """The largest curvature after each number of steps without noise, mean over seeds."""
    names, columns = {"plain": "plain Hessian", "clipped": "clipped map"}, {}
    for kind, title in names.items():
        for momentum in ("0", "0.9"):
            record = _path(momentum, folder)
            columns[f"{title}, μ = {momentum}"] = np.mean(record[kind], axis=0)
    return pd.DataFrame(columns, index=pd.Index(record["steps"], name="step"))


def damage_along(momentum: str, folder: Path = RESULTS) -> dict[str, pd.DataFrame]:
    """Loss from noise after each number of steps, as predicted and as observed (nats)."""
    record = _path(momentum, folder)
    steps = pd.Index(record["steps"][1:], name="step")
    observed = {name: np.mean(found, axis=0) for name, found in record["observed"].items()}
    return {
        "predicted": pd.DataFrame(record["predicted"], index=steps).rename(columns=NAMES),
        "observed": pd.DataFrame(observed, index=steps).rename(columns=NAMES),
    }


def final_by_curvature(momentum: str, folder: Path = RESULTS) -> pd.DataFrame:
    """Final damage as the curvature after each number of steps would predict it, mean over seeds."""
    record = _path(momentum, folder)
    found = {
        name: np.mean(np.array(values, float), axis=0)
        for name, values in record["final_by_curvature"].items()
    }
    return pd.DataFrame(found, index=pd.Index(record["steps"], name="step")).rename(columns=NAMES)


def turned(folder: Path = RESULTS) -> pd.DataFrame:
    """Share of the largest curvatures after each number of steps that lies in the directions which
    were the largest at the designs' step, mean over seeds; a momentum a column."""
    columns = {}
    for momentum in ("0", "0.9"):
        record = read_record(Path(folder) / f"turn-{momentum}.json")
        columns[f"μ = {momentum}"] = np.mean(record["share"], axis=0)
    return pd.DataFrame(columns, index=pd.Index(record["steps"], name="step"))
