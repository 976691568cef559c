"""The report of a run as one HTML page: the chapter, executed by papermill on the run file."""

import html
import os
import pickle
import re
import tempfile
from pathlib import Path

from momentdp import chapters
from momentdp.synthesis.problem import progress
from momentdp.tool.choice import Choice, choose
from momentdp.tool.runfile import read_run

CHAPTER = "10_choose"
BOOK_ONLY = "book-only"  # tag of cells that explain the chapter and do not belong to a report
GLUED = re.compile(r"\{glue:text\}`(\w+)`")
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2rem auto; padding: 0 1rem; }}
table {{ border-collapse: collapse; font-size: 0.85rem; }} td, th {{ padding: 0.2rem 0.6rem;
text-align: left; border-bottom: 1px solid #ddd; }} img {{ max-width: 100%; }} pre {{ overflow-x: auto; }}
</style></head><body>{body}</body></html>
"""


def write_report(run_file: str | Path, output: str | Path, found: Choice | None = None) -> Path:
    """Execute the chapter on a run file and write what it shows; the path of the page.

    The page needs no network. ``found``, the choice for this file where it is known already, saves
    the chapter from computing it again. Raises ValueError for an output that is not .html, or a package
    without the book beside it, ChapterFailed where a cell raised.
    """
    output = Path(output)
    if output.suffix != ".html":
        raise ValueError(f"report: got {output}; give a path that ends in .html")
    parameters = {"run_file": str(Path(run_file).resolve()), "worked_examples": []}
    progress("writing the report")
    with tempfile.TemporaryDirectory() as scratch:
        try:
            kept = Path(scratch) / "choice.pickle"
            kept.write_bytes(pickle.dumps(found))
            parameters["choice_file"] = str(kept)
        except (AttributeError, TypeError, pickle.PicklingError):
            pass  # code of the user's own, such as an optax chain: the chapter computes it again
        executed = chapters.run_chapter(CHAPTER, parameters, Path(scratch) / "report.ipynb")
        page = render(executed, f"Which mechanism for {Path(run_file).name}?")
    progress("")
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_suffix(".tmp")
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, output)
    return output


def choice_for(run_file: str | Path, choice_file: str = "") -> Choice:
    """The choice for a run file: from a pickle that ``write_report`` left, or computed."""
    found = pickle.loads(Path(choice_file).read_bytes()) if choice_file else None
    return found or choose(read_run(run_file))


def render(notebook: Path, title: str) -> str:
    """A notebook without its code and its book-only cells as a page that stands alone."""
    import nbformat
    from nbconvert import HTMLExporter

    document = nbformat.read(notebook, as_version=4)
    recorded = {}
    for cell in document.cells:
        for output in cell.get("outputs", []):
            if key := output.get("metadata", {}).get("scrapbook", {}).get("name"):
                text = output["data"].get("application/papermill.record/text/plain", "")
                recorded[key] = text.strip("'")
    document.cells = [
        cell for cell in document.cells if BOOK_ONLY not in cell.metadata.get("tags", [])
    ]
    for cell in document.cells:
        if cell.cell_type == "markdown":
            cell.source = GLUED.sub(lambda match: recorded.get(match[1], "?"), cell.source)
            continue
        cell.outputs = [
            output
            for output in cell.get("outputs", [])
            if not output.get("metadata", {}).get("scrapbook") and output.get("name") != "stderr"
        ]
    shown = {"exclude_input": True, "exclude_output_prompt": True, "anchor_link_text": ""}
    exporter = HTMLExporter(template_name="basic", **shown)
    body, _ = exporter.from_notebook_node(document)
    return PAGE.format(title=html.escape(title), body=body)
