"""What pages say about the book itself, against the files that it is said of."""

import sys

import nbformat
import pytest

from momentdp import chapters, ledger


@pytest.fixture(scope="module")
def companion(root):
    sys.path.insert(0, str(root / "book" / "_ext"))
    import companion

    yield companion
    sys.path.remove(str(root / "book" / "_ext"))


def test_each_row_of_the_ledger_leads_to_a_cell_that_is_there():
    ids, anchors = ledger.load()["id"], {}
    for path in chapters.NOTEBOOKS.glob("*.ipynb"):
        cells = nbformat.read(path, as_version=4).cells
        anchors[path.stem] = {cell.id for cell in cells if cell.cell_type == "code"}
        if any("# Reported against ours" in cell.source for cell in cells):
            anchors[path.stem].add("reported-against-ours")
    for identity in ids:
        chapter, cell = chapters.cell_of(identity).split("#")
        assert cell in anchors[chapter], identity
    used = {chapters.cell_of(identity) for identity in ids}
    assert used == set(chapters.CELLS.values())  # no cell is named for nothing
    with pytest.raises(ValueError, match="id: got 'new.row'; name its cell"):
        chapters.cell_of("new.row")


def test_rows_are_linked_where_they_head_a_row_and_nowhere_else(companion):
    body = "<th>grid.top1.static</th><th>where</th><td>grid.top1.static</td>"
    linked, ids = companion.linked_rows(body)
    href = chapters.cell_of("grid.top1.static").replace("#", ".html#")
    expected = f'<th><a href="{href}">grid.top1.static</a></th>'
    assert linked == expected + body.partition("</th>")[2]
    assert ids == {"grid.top1.static"}


def test_docstrings_keep_their_bars(companion):
    lines = ["(c / |g|)(I - u u') with ``a | b`` and 2 * x", "see :func:`other_name`."]
    companion._plain_bars(None, "function", "f", None, None, lines)
    kept = ["(c / \\|g\\|)(I - u u') with ``a | b`` and 2 \\* x", "see ``other_name``."]
    assert lines == kept


def test_a_run_that_stores_outputs_is_timed(load_tool, tmp_path):
    tool = load_tool("execute")
    tool.record(tmp_path / "01_a.ipynb", 12)
    tool.record(tmp_path / "02_b.ipynb", 3)
    kept = tool.times(tmp_path)
    assert {name: row["seconds"] for name, row in kept.items()} == {"01_a": 12, "02_b": 3}
    assert list(tmp_path.iterdir()) == [tmp_path / tool.RECORD]
    assert tool.times(tmp_path / "elsewhere") == {}


def test_each_chapter_has_a_time_and_a_version(load_tool):
    times = load_tool("execute").times(chapters.NOTEBOOKS)
    assert set(times) == {path.stem for path in chapters.NOTEBOOKS.glob("*.ipynb")}
    assert all(row["seconds"] > 0 and row["python"].count(".") == 2 for row in times.values())
