"""Re-run notebooks and store their outputs: `python book/tools/execute.py notebooks/*.ipynb`.

The stored file depends on the code alone: no timings, no version of the interpreter, streams merged.
A file is written only when its content changes, and only when each of its cells ran.

With `--check` nothing runs: each notebook must hold the outputs of just the code that it shows. The
book is built after this check, so an edited, crashing or never executed cell cannot be published
with the outputs of another one.
"""

import hashlib
import json
import os
import platform
import resource
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

CELL_TIMEOUT_SECONDS = 900
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "pygments_lexer": "ipython3"},
}
FINGERPRINT = "outputs_of"  # metadata of a notebook: a hash of the code that gave its outputs
RECORD = "execution.json"  # beside the notebooks: how long the last run that changed one took
# What Jupyter and papermill leave in cells; none of it belongs to the text of a chapter.
PASSING_METADATA = ("collapsed", "execution", "jupyter", "papermill", "scrolled", "trusted")


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def fingerprint_of(sources: list[str]) -> str:
    """A hash of all code, cell by cell."""
    return hashlib.sha256("\0".join(sources).encode()).hexdigest()[:16]


def fingerprint(notebook) -> str:
    return fingerprint_of([cell.source for cell in code_cells(notebook)])


def output_problems(notebook) -> list[str]:
    """Why the stored outputs cannot be those of the code beside them; an empty list if they can."""
    found = []
    counts = [cell.execution_count for cell in code_cells(notebook)]
    if counts != list(range(1, len(counts) + 1)):
        found.append(f"execution counts are not 1..n: {counts}")
    if notebook.metadata.get(FINGERPRINT) != fingerprint(notebook):
        found.append("the code changed after its outputs were stored: run `make execute`")
    for number, cell in enumerate(code_cells(notebook), start=1):
        for output in cell.outputs:
            if output.output_type == "error" or output.get("name") == "stderr":
                found.append(f"cell {number} stored an error or stderr")
    return found


def refreshed(path: Path) -> str:
    """The notebook's text after a run of all its cells in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        for key in PASSING_METADATA:
            cell.metadata.pop(key, None)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=CELL_TIMEOUT_SECONDS,
        record_timing=False,
        coalesce_streams=True,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute()
    notebook.metadata = nbformat.from_dict(METADATA | {FINGERPRINT: fingerprint(notebook)})
    if found := output_problems(notebook):
        raise ValueError("\n".join(found))
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def execute(path: Path) -> tuple[str, bool]:
    """Run one notebook; what happened, and whether it went well."""
    begun = processor_seconds()
    try:
        text = refreshed(path)
    except (CellExecutionError, RuntimeError, TimeoutError, ValueError) as error:
        return f"{path}: FAILED\n{error}", False
    changed = text != path.read_text(encoding="utf-8")
    if changed:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    if changed or path.stem not in times(path.parent):
        record(path, round(processor_seconds() - begun))
    return f"{path}: {'updated' if changed else 'unchanged'}", True


def processor_seconds() -> float:
    """Of the kernels that this process has run: what else the machine does hardly changes it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def times(folder: Path) -> dict[str, dict]:
    """Chapter -> seconds of processor and Python of its last timed run."""
    file = folder / RECORD
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def record(path: Path, seconds: int) -> None:
    """Note the time of a run whose outputs were stored, or of a first one, for the page on status."""
    file, known = path.with_name(RECORD), times(path.parent)
    known[path.stem] = {"seconds": seconds, "python": platform.python_version()}
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(temporary, file)


def check(path: Path) -> tuple[str, bool]:
    """Check one notebook without running it; what was found, and whether it is sound."""
    found = output_problems(nbformat.read(path, as_version=4))
    return "\n".join(f"{path}: {problem}" for problem in found) or f"{path}: sound", not found


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments if argument != "--check"]
    work = check if "--check" in arguments else execute
    with ProcessPoolExecutor(max_workers=2) as pool:
        went_well = True
        for message, success in pool.map(work, paths):
            print(message, flush=True)
            went_well = went_well and success
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
