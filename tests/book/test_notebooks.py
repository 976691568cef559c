"""What nbval cannot see in a stored chapter, and proof that each rule bites.

nbval runs a cell without an execution count and compares nothing, never compares pictures, and says
nothing about style. The rules below do.
"""

import ast
import copy
import re
import statistics
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from momentdp import chapters

NOTEBOOKS = sorted(chapters.NOTEBOOKS.glob("*.ipynb"))

LOGIC = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.While, ast.Try)
PASSING = {  # what changes from run to run, or from machine to machine
    "an address": re.compile(r"0x[0-9a-fA-F]{6,}"),
    "a numpy repr": re.compile(r"\bnp\.(float|int|bool|str)\d*_?\("),
    "a path of a machine": re.compile(r"(?<![\w.])/(?:home|tmp|root|Users|usr)\b/"),
    "a time": re.compile(r"\b\d+(\.\d+)? ?(ns|µs|us|ms|s|secs?|seconds|minutes)\b"),
}
DECIMAL = re.compile(r"(?<![\w.:])\d*\.\d+(?:[eE][-+]?\d+)?(?![\w.])")
SIGNIFICANT = 5


def texts(cell) -> list[str]:
    """All text that a code cell has stored, recorded values included."""
    found = []
    for output in cell.outputs:
        found.append(output.get("text", ""))
        found += [
            content
            for kind, content in output.get("data", {}).items()
            if "text/" in kind and isinstance(content, str)
        ]
    return found


def draws(cell) -> bool:
    return any("image/" in kind for output in cell.outputs for kind in output.get("data", {}))


def digits(number: str) -> int:
    """How many significant digits are printed, trailing zeros included: 0.0120 has 3."""
    return len(re.split("[eE]", number)[0].replace(".", "").lstrip("0"))


def problems_of_cell(cell) -> list[str]:
    found = []
    try:
        tree = ast.parse(cell.source)
    except SyntaxError:
        return ["not plain Python (magics belong elsewhere)"]
    found += [f"holds logic: {type(n).__name__}" for n in ast.walk(tree) if isinstance(n, LOGIC)]
    if set(cell.metadata) - {"tags", "mystnb"}:
        found.append(f"passing metadata: {sorted(set(cell.metadata) - {'tags', 'mystnb'})}")
    for text in texts(cell):
        found += [
            f"stored {what}: {r.search(text)[0]}" for what, r in PASSING.items() if r.search(text)
        ]
        long = [number for number in DECIMAL.findall(text) if digits(number) > SIGNIFICANT]
        found += [f"stored more than {SIGNIFICANT} digits: {number}" for number in long]
    if draws(cell):
        printed = " ".join(texts(cell))
        if not all(word in printed for word in ("min", "mean", "max")):
            found.append("draws without printing min, mean and max")
        shown = cell.metadata.get("mystnb", {})
        if not shown.get("image", {}).get("alt", "").strip():
            found.append("draws without alternative text (mystnb: image: alt)")
        if not shown.get("figure", {}).get("caption", "").strip():
            found.append("draws without a caption (mystnb: figure: caption)")
    return found


def problems_of(notebook, tool) -> list[str]:
    """Each fault of a stored chapter in one line; `tool` is book/tools/execute.py."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    prose = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    found = tool.output_problems(notebook)
    if notebook.metadata != tool.METADATA | {tool.FINGERPRINT: tool.fingerprint(notebook)}:
        found.append(f"metadata is not that of `make execute`: {sorted(notebook.metadata)}")
    tagged = [cell for cell in code if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1:
        found.append(f"{len(tagged)} cells tagged parameters")
    lengths = sorted(len(cell.source.splitlines()) for cell in code)
    if statistics.median(lengths) > 8:
        found.append(f"median length of code cells is {statistics.median(lengths)}, more than 8")
    if lengths[int(0.9 * (len(lengths) - 1))] > 25 or lengths[-1] > 40:
        found.append(f"code cells are too long: {lengths}")
    if len(prose) < len(code):
        found.append(f"{len(prose)} text cells for {len(code)} code cells")
    for number, cell in enumerate(code, start=1):
        found += [f"cell {number} {problem}" for problem in problems_of_cell(cell)]
    return found


@pytest.fixture(scope="module")
def tool(load_tool):
    return load_tool("execute")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_chapter(path: Path, tool):
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.reads(text, as_version=4)
    assert problems_of(notebook, tool) == []
    assert chapters.chapter_parameters(path), "no parameters"
    # Written as `make execute` writes it, so that a run that changes nothing changes no byte.
    assert nbformat.writes(notebook).rstrip("\n") + "\n" == text


@pytest.fixture
def sound(tool):
    """A small chapter that keeps all rules."""
    alt = {"image": {"alt": "Damage falls with momentum"}, "figure": {"caption": "Damage."}}
    picture = new_output("display_data", {"image/png": "iVBORw0KGgo=", "text/plain": "<Figure>"})
    numbers = new_output("stream", name="stdout", text="damage: min 0.12 mean 1.5 max 1.2346e-03\n")
    cells = [
        new_markdown_cell("# Title"),
        new_code_cell("momentum = 0.9", metadata={"tags": ["parameters"]}, execution_count=1),
        new_markdown_cell("text"),
        new_code_cell("draw()", execution_count=2, outputs=[numbers, picture]),
    ]
    cells[3].metadata.mystnb = nbformat.from_dict(alt)
    notebook = new_notebook(cells=cells)
    metadata = tool.METADATA | {tool.FINGERPRINT: tool.fingerprint(notebook)}
    notebook.metadata = nbformat.from_dict(copy.deepcopy(metadata))
    return notebook


def test_a_sound_chapter_has_no_problems(sound, tool):
    assert problems_of(sound, tool) == []


def _print(text):
    return lambda n: n.cells[3].outputs.append(new_output("stream", name="stdout", text=text))


PLANTED = {
    "counts": (lambda n: n.cells[1].update(execution_count=None), "not 1..n: .None, 2"),
    "stripped": (lambda n: [c.update(execution_count=None) for c in n.cells[1::2]], "not 1..n"),
    "kernel": (lambda n: n.metadata.kernelspec.update(name="my-env"), "metadata is not"),
    "papermill": (lambda n: n.metadata.update(papermill={}), "metadata is not"),
    "cell metadata": (
        lambda n: n.cells[3].metadata.update(execution={}),
        "cell 2 passing metadata",
    ),
    "no parameters": (lambda n: n.cells[1].metadata.clear(), "0 cells tagged"),
    "two parameters": (lambda n: n.cells[3].metadata.update(tags=["parameters"]), "2 cells tagged"),
    "edited": (lambda n: n.cells[3].update(source="draw(1 / 0)"), "the code changed after"),
    "def": (lambda n: n.cells[3].update(source="def f():\n    return 1"), "logic: FunctionDef"),
    "lambda": (lambda n: n.cells[3].update(source="g = lambda x: x"), "logic: Lambda"),
    "class": (lambda n: n.cells[3].update(source="class A:\n    x = 1"), "logic: ClassDef"),
    "magic": (lambda n: n.cells[3].update(source="%timeit f()"), "not plain Python"),
    "long": (lambda n: n.cells[3].update(source="x = 1\n" * 41), "too long"),
    "median": (lambda n: [c.update(source="x = 1\n" * 9) for c in n.cells[1::2]], "median"),
    "little prose": (lambda n: n.cells.pop(2), "1 text cells for 2 code cells"),
    "stderr": (
        lambda n: n.cells[3].outputs.append(new_output("stream", name="stderr", text="w")),
        "stored an error or stderr",
    ),
    "error": (
        lambda n: n.cells[3].outputs.append(
            new_output("error", ename="E", evalue="", traceback=[])
        ),
        "stored an error or stderr",
    ),
    "address": (_print("<Axes at 0x7f00aa11>"), "stored an address"),
    "numpy repr": (_print("np.float64(0.5)"), "stored a numpy repr"),
    "path": (_print("saved in /home/me/x"), "stored a path of a machine"),
    "time": (_print("took 1.25 s"), "stored a time"),
    "digits": (_print("eps = 2.524265"), "more than 5 digits: 2.524265"),
    "no numbers": (lambda n: n.cells[3].outputs.pop(0), "without printing min, mean and max"),
    "no alt": (lambda n: n.cells[3].metadata.mystnb.pop("image"), "without alternative text"),
    "no caption": (lambda n: n.cells[3].metadata.mystnb.pop("figure"), "without a caption"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_each_rule_bites(fault, sound, tool):
    plant, message = PLANTED[fault]
    plant(sound)
    assert any(re.search(message, problem) for problem in problems_of(sound, tool)), fault


def test_recorded_values_are_held_to_the_digits_too(sound, tool):
    record = {"application/papermill.record/text/plain": "'0.123456789'"}
    sound.cells[3].outputs.append(new_output("display_data", record))
    assert problems_of(sound, tool) == ["cell 2 stored more than 5 digits: 0.123456789"]
