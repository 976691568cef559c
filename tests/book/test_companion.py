"""What pages say about the book itself, against the files that it is said of."""

import json
import sys

import pytest

from momentdp import chapters, ledger


@pytest.fixture(scope="module")
def companion(root):
    sys.path.insert(0, str(root / "book" / "_ext"))
    import companion

    yield companion
    sys.path.remove(str(root / "book" / "_ext"))


def test_the_rows_of_the_ledger_belong_to_chapters_that_show_them(companion, root):
    owners = companion.row_owners(root)
    assert owners["identity."] == "02_noisecurve_identity.html#reported-against-ours"
    assert owners["logistic."].startswith("06_logistic.html")
    for start, page in owners.items():
        text = chapters.find_chapter(page.partition(".html")[0]).read_text(encoding="utf-8")
        assert start in text, start
        assert ledger.load()["id"].str.startswith(start).any()


def test_docstrings_keep_their_bars(companion):
    lines = ["(c / |g|)(I - u u') with ``a | b`` and 2 * x", "see :func:`other_name`."]
    companion._plain_bars(None, "function", "f", None, None, lines)
    kept = ["(c / \\|g\\|)(I - u u') with ``a | b`` and 2 \\* x", "see ``other_name``."]
    assert lines == kept


def test_a_run_that_stores_outputs_is_timed(load_tool, tmp_path):
    tool = load_tool("execute")
    tool.record(tmp_path / "01_a.ipynb", 12)
    tool.record(tmp_path / "02_b.ipynb", 3)
    kept = json.loads((tmp_path / tool.RECORD).read_text())
    assert {name: row["seconds"] for name, row in kept.items()} == {"01_a": 12, "02_b": 3}
    assert list(tmp_path.iterdir()) == [tmp_path / tool.RECORD]
