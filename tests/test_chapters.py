"""Chapters at other settings: refusals, and that a parameter really reaches what is recorded."""

import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from momentdp import chapters

# Each chapter, one other setting for it, and the recorded (glued) value that must then change.
CHAPTERS: dict[str, tuple[dict[str, object], str]] = {
    "01_state_space": ({"momentum": 0.5}, "damage"),
    "02_noisecurve_identity": ({"el": 0.2}, "damage"),
    "03_mechanisms": ({"epsilon": 1.0}, "sigma"),
    "04_crossovers": ({"threshold": 0.05}, "share_b"),
    "05_intervention": ({"el": 0.2, "other_el": 0.4}, "size_noisecurve"),
    "06_logistic": ({"epsilon": 1.0}, "share"),
    "07_cnn_boundary": ({"steps": 4}, "fallen"),
    "07b_crossing": ({"outcome": "test_accuracy"}, "t_still"),
    "08_prior_work": ({"final_ratio": 0.5}, "root_mean"),
    "09_synthesis": ({"momentum": 0.5}, "live_banded"),
    "10_choose": ({"run_file": "../examples/momentum_off.yaml"}, "spread"),
    "90_ledger": ({"listed": "not yet"}, "listed_rows"),
}

NOTEBOOKS = sorted(path.stem for path in chapters.NOTEBOOKS.glob("*.ipynb"))


def recorded(notebook: Path) -> dict[str, str]:
    """What an executed chapter recorded with `glue`: key -> text."""
    found = {}
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            key = output.get("metadata", {}).get("scrapbook", {}).get("name")
            if key is not None:
                found[key] = output["data"].get("application/papermill.record/text/plain", "")
    return found


def test_each_chapter_has_another_setting():
    assert sorted(CHAPTERS) == NOTEBOOKS


@pytest.mark.parametrize("chapter", NOTEBOOKS)
def test_chapter_at_another_setting(chapter, tmp_path):
    parameters, key = CHAPTERS[chapter]
    output = chapters.run_chapter(chapter, parameters, tmp_path)
    before = recorded(chapters.find_chapter(chapter))
    after = recorded(output)
    assert set(before) == set(after)
    assert before[key] != after[key]


SOURCE = """momentum = 0.9  # (a = b)
steps = 16
nesterov = False
label = "cosine"
grid = [0.0, 0.5]
data_path = None"""

BODY = """import pathlib
from myst_nb import glue
glue("sum", f"{momentum + steps:.3f}", display=False)
glue("where", pathlib.Path.cwd().name, display=False)
glue("rest", f"{nesterov} {label} {grid} {data_path}", display=False)"""


def write_chapter(folder: Path, name="01_tiny.ipynb", source=SOURCE, body=BODY) -> Path:
    parameters = new_code_cell(source, metadata={"tags": ["parameters"]})
    notebook = new_notebook(cells=[new_markdown_cell("# Tiny"), parameters, new_code_cell(body)])
    # An environment that is not on this machine, as notebooks of other people carry it.
    notebook.metadata["kernelspec"] = {"name": "my-env", "language": "python", "display_name": "x"}
    folder.mkdir(exist_ok=True)
    nbformat.write(notebook, folder / name)
    return folder / name


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A folder of chapters of our own in place of the book's."""
    write_chapter(tmp_path / "notebooks")
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path / "notebooks")
    return tmp_path / "notebooks"


@pytest.mark.parametrize("folder", ["/", "notebooks"])
def test_parameters_reach_the_chapter_from_any_folder(notebooks, tmp_path, monkeypatch, folder):
    monkeypatch.chdir(notebooks if folder == "notebooks" else folder)
    settings = {"momentum": 1, "steps": 2, "nesterov": True, "grid": (0, 1e-3), "data_path": "d"}
    output = chapters.run_chapter("tiny", settings, tmp_path / "out")
    assert output == tmp_path / "out" / "01_tiny.ipynb"
    assert recorded(output) == {
        "sum": "'3.000'",
        "where": "'notebooks'",
        "rest": "'True cosine [0.0, 0.001] d'",
    }


def test_defaults_when_nothing_is_given(notebooks, tmp_path):
    output = chapters.run_chapter(notebooks / "01_tiny.ipynb", output=tmp_path / "x.ipynb")
    assert recorded(output)["sum"] == "'16.900'"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"momentun": 0.5}, "momentun: not a parameter of 01_tiny; it has momentum, steps"),
        (
            {"momentum": "0.5"},
            "momentum: got '0.5' .str.; give a value of type float, such as its default 0.9",
        ),
        ({"momentum": True}, "momentum: got True"),
        ({"steps": 8.0}, "steps: got 8.0 .float.; give a value of type int"),
        ({"steps": True}, "steps: got True"),
        ({"nesterov": 1}, "nesterov: got 1"),
        ({"label": 3}, "label: got 3"),
        ({"label": None}, "label: got None"),
        ({"grid": 0.5}, "grid: got 0.5"),
        ({"grid": [0.5, "a"]}, "grid: got 'a'"),
        ({"data_path": ["a"]}, "data_path: got"),
    ],
)
def test_unknown_names_and_wrong_types_are_refused_before_running(
    notebooks, tmp_path, parameters, message
):
    with pytest.raises(ValueError, match=message):
        chapters.run_chapter("tiny", parameters, tmp_path / "out.ipynb")
    assert not (tmp_path / "out.ipynb").exists()


def test_unknown_chapter_names_the_known_ones(notebooks):
    with pytest.raises(ValueError, match="got 'tinny'; choose one of 01_tiny"):
        chapters.find_chapter("tinny")
    with pytest.raises(ValueError, match="does not exist"):
        chapters.find_chapter("nowhere/01_tiny.ipynb")


def test_without_the_book_beside_the_package(notebooks):
    shutil.rmtree(notebooks)
    with pytest.raises(ValueError, match="no chapters in .*pip install -e"):
        chapters.find_chapter("tiny")


@pytest.mark.parametrize(
    "output", ["notebooks", "notebooks/copy.ipynb", "notebooks/../notebooks/a"]
)
def test_never_writes_among_the_chapters(notebooks, tmp_path, output):
    before = {path.name: path.read_bytes() for path in notebooks.iterdir()}
    with pytest.raises(ValueError, match="among the committed chapters"):
        chapters.run_chapter("tiny", {}, tmp_path / output)
    assert {path.name: path.read_bytes() for path in notebooks.iterdir()} == before


def test_a_link_does_not_lead_into_the_chapters(notebooks, tmp_path):
    (tmp_path / "link").symlink_to(notebooks)
    with pytest.raises(ValueError, match="among the committed chapters"):
        chapters.run_chapter("tiny", {}, tmp_path / "link" / "x.ipynb")


def test_a_notebook_elsewhere_is_not_overwritten_by_its_own_run(tmp_path):
    path = write_chapter(tmp_path / "mine")
    with pytest.raises(ValueError, match="output"):
        chapters.run_chapter(path, {}, path)


def test_a_failing_cell_is_named(notebooks, tmp_path):
    write_chapter(notebooks, "02_broken.ipynb", body="x = 1\nx / 0")
    with pytest.raises(
        chapters.ChapterFailed, match=r"cell \[2\] raised ZeroDivisionError"
    ) as info:
        chapters.run_chapter("broken", {}, tmp_path / "out.ipynb")
    assert "x / 0" in str(info.value)
    assert (tmp_path / "out.ipynb").is_file()


def test_parameters_are_plain_literals_in_one_cell(tmp_path):
    path = write_chapter(tmp_path / "a", source="import math\nx = math.pi")
    with pytest.raises(ValueError, match="got `import math` among the parameters"):
        chapters.chapter_parameters(path)
    path = write_chapter(tmp_path / "b", source="x = 2 * y")
    with pytest.raises(ValueError, match="write `name = literal`"):
        chapters.chapter_parameters(path)
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[1].metadata.tags = []
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match="got 0 cells tagged `parameters`"):
        chapters.chapter_parameters(path)
