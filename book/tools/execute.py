"""Re-run notebooks and store their outputs: `python book/tools/execute.py notebooks/*.ipynb`.

The stored file depends on the code alone: no timings, no version of the interpreter, streams merged.
A file is written only when its content changes, and only when each of its cells ran.
"""

import os
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
# What Jupyter and papermill leave in cells; none of it belongs to the text of a chapter.
PASSING_METADATA = ("collapsed", "execution", "jupyter", "papermill", "scrolled", "trusted")


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
    for number, cell in enumerate(notebook.cells, start=1):
        for output in cell.get("outputs", []):
            if output.get("name") == "stderr":
                raise ValueError(f"cell {number} wrote to stderr:\n{output.text}")
    notebook.metadata = nbformat.from_dict(METADATA)
    return nbformat.writes(notebook).rstrip("\n") + "\n"


def execute(path: Path) -> tuple[str, bool]:
    """Run one notebook; what happened, and whether it went well."""
    try:
        text = refreshed(path)
    except (CellExecutionError, RuntimeError, TimeoutError, ValueError) as error:
        return f"{path}: FAILED\n{error}", False
    if text == path.read_text(encoding="utf-8"):
        return f"{path}: unchanged", True
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)
    return f"{path}: updated", True


def main(arguments: list[str]) -> int:
    paths = [Path(argument) for argument in arguments]
    with ProcessPoolExecutor(max_workers=2) as pool:
        went_well = True
        for message, success in pool.map(execute, paths):
            print(message, flush=True)
            went_well = went_well and success
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
