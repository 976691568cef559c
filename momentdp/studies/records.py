"""Long studies as resumable jobs: one JSON record a run, written whole or not at all.

A record carries what decided it (its identity), the versions that made it and its own checksum. A
second call runs what is missing; damaged records and those of another identity are refused. A
folder that is done has a manifest with the SHA-256 of each file.
"""

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

from tqdm import tqdm

from momentdp._checks import refuse

COMMITTED = Path(__file__).resolve().parents[2] / "results"
MANIFEST = "manifest.json"
PACKAGES = ("momentdp", "jax", "jaxlib", "jax-privacy", "matfree", "numpy")


def complete(
    function: Callable,
    shared: object,
    jobs: Mapping[Path, tuple[dict, tuple]],
    *,
    workers: int = 1,
    scheduler: str | None = None,
) -> dict[Path, dict]:
    """The records of all jobs: those on disk are read, the others run and written.

    Args:
        function: `function(shared, *arguments)` -> dict of plain numbers, strings and lists.
        shared: large common input; it travels once to each worker.
        jobs: path -> (identity, arguments).
        workers: local processes; 1 runs in this one. More need `dask.distributed`.
        scheduler: address of a running `dask.distributed` scheduler, used instead.
    """
    done = {path: read_record(path, jobs[path][0]) for path in jobs if path.exists()}
    missing = {path: arguments for path, (_, arguments) in jobs.items() if path not in done}
    results = _execute(function, shared, missing, workers, scheduler)
    for path, result in tqdm(results, total=len(missing), disable=None, unit="run"):
        write_record(path, jobs[path][0], result)
        done[path] = {**jobs[path][0], **result}
    return {path: done[path] for path in jobs}  # in their order, not that of their end


def _execute(
    function: Callable,
    shared: object,
    jobs: Mapping[Path, tuple],
    workers: int,
    scheduler: str | None,
) -> Iterator[tuple[Path, dict]]:
    """(path, result) of each job as it finishes; `shared` travels once to each worker."""
    if not jobs:
        return
    if workers == 1 and scheduler is None:
        for path, arguments in jobs.items():
            yield path, _timed(function, shared, *arguments)
        return
    from distributed import Client, LocalCluster, as_completed

    # One thread a process: small products gain nothing from two, and workers would share cores.
    flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    single = {"XLA_FLAGS": flags, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    local = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
    cluster = nullcontext(scheduler) if scheduler else LocalCluster(**local, env=single)
    with cluster as address, Client(address) as client:
        there = client.scatter(shared, broadcast=True)
        futures = {
            client.submit(_timed, function, there, *arguments, pure=False): path
            for path, arguments in jobs.items()
        }
        for future in as_completed(futures):
            yield futures[future], future.result()


def _timed(function: Callable, *arguments) -> dict:
    start = time.perf_counter()
    return {**function(*arguments), "seconds": time.perf_counter() - start}


def _checksum(record: dict) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def write_record(path: Path, identity: dict, result: dict) -> None:
    """Write a record atomically; a full disk leaves no half record behind."""
    versions = {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
    record = {"identity": identity, "result": result, "versions": versions}
    text = json.dumps({**record, "record_sha256": _checksum(record)}, indent=1, allow_nan=False)
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def read_record(path: Path, identity: dict | None = None) -> dict:
    """Identity and result of a record, its checksum and (when given) its identity compared.

    `ValueError` naming the file when it is damaged or of another identity.
    """
    try:
        record = json.loads(path.read_text())
        damaged = record.pop("record_sha256") != _checksum(record)
    except (ValueError, KeyError, TypeError, AttributeError):
        damaged = True
    if damaged:
        raise ValueError(f"{path.name}: the record is damaged; delete it and it is run again")
    if identity is not None and record["identity"] != identity:
        old = record["identity"]
        changes = ", ".join(
            f"{key} {old.get(key)} there and {identity[key]} now"
            for key in identity
            if old.get(key) != identity[key]
        )
        raise ValueError(f"{path.name}: a record of other settings ({changes}); use another folder")
    return {**record["identity"], **record["result"]}


def write_manifest(folder: Path, files: Iterable[Path], **about: object) -> None:
    """Note the SHA-256 of each of the files, which lie in ``folder``, after what ``about`` says."""
    hashes = {path.relative_to(folder).as_posix(): _sha256(path) for path in sorted(files)}
    text = json.dumps({**about, "sha256": hashes}, indent=1)
    (folder / MANIFEST).write_text(text + "\n")


def read_manifest(folder: Path) -> dict:
    """The manifest of a folder, each file that it names compared with its hash.

    `ValueError` names a file that changed; a missing one raises FileNotFoundError.
    """
    manifest = json.loads((folder / MANIFEST).read_text())
    for name, digest in manifest["sha256"].items():
        if (found := _sha256(folder / name)) != digest:
            raise refuse(name, f"SHA-256 {found[:12]}...", f"restore {digest[:12]}...")
    return manifest


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
