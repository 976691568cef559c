"""The strict build, the site check and the execution of notebooks, each with planted faults."""

import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

PAGE = "<html><head>{head}</head><body><h1 id='top'>T</h1>{body}</body></html>"


@pytest.mark.parametrize(
    ("head", "body", "problem"),
    [
        ("", "<a href='#top'>x</a><a href='https://example.org/'>out</a>", None),
        ("", "<a href='other.html#here'>x</a><img src='p.png' alt='a curve'>", None),
        ("", "<img src='data:image/png;base64,AA' alt='a curve'>", None),
        ("<script src='https://example.org/x.js'></script>", "", "asks for https://example.org"),
        ("<script src='//example.org/x.js'></script>", "", "asks for //example.org/x.js"),
        ("<link rel='stylesheet' href='https://example.org/x.css'>", "", "asks for"),
        ("", "<img src='https://example.org/x.png' alt='a curve'>", "asks for"),
        ("", "<img srcset='https://example.org/x.png 2x' src='p.png' alt='a'>", "asks for"),
        ("<script>load('https://example.org/t.js')</script>", "", "inline script names"),
        ("<style>@import 'https://example.org/f.css';</style>", "", "inline style names"),
        ("", "<p style='background: url(//example.org/b.png)'>x</p>", "inline style names"),
        ("", "<a href='none.html'>x</a>", "no such file: none.html"),
        ("", "<a href='#none'>x</a>", "no such anchor: #none"),
        ("", "<a href='other.html#none'>x</a>", "no such anchor: other.html#none"),
        ("", "<img src='none.png' alt='a curve'>", "no such file: none.png"),
        ("", "<img src='p.png'>", "without alternative text"),
    ],
)
def test_site_check(load_tool, tmp_path, head, body, problem):
    check_site = load_tool("check_site")
    (tmp_path / "index.html").write_text(PAGE.format(head=head, body=body))
    (tmp_path / "other.html").write_text(PAGE.format(head="", body="<p id='here'></p>"))
    (tmp_path / "p.png").write_bytes(b"x")
    found = check_site.problems_of(tmp_path)
    assert len(found) == (problem is not None), found
    assert problem is None or problem in found[0]
    assert check_site.main([str(tmp_path)]) == (problem is not None)


def test_site_check_style_sheets_size_and_emptiness(load_tool, tmp_path, monkeypatch):
    check_site = load_tool("check_site")
    assert check_site.problems_of(tmp_path) == [f"{tmp_path}: no index.html"]
    (tmp_path / "index.html").write_text(PAGE.format(head="", body=""))
    (tmp_path / "a.css").write_text("@font-face { src: url('https://example.org/f.woff2') }")
    assert check_site.problems_of(tmp_path) == ["a.css: asks for https://example.org/f.woff2"]
    (tmp_path / "a.css").write_text("")
    monkeypatch.setattr(check_site, "MAX_BYTES", 10)
    assert "MB, more than" in check_site.problems_of(tmp_path)[0]


def build(folder):
    program = Path(sys.executable).parent / "jupyter-book"
    command = [program, "build", ".", "--all", "-W", "-n", "--keep-going"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_strict_build_ignores_stray_pages_and_fails_each_time_on_a_warning(
    root, load_tool, tmp_path
):
    shutil.copy(root / "_config.yml", tmp_path)
    for folder in ("_ext", "_static"):
        shutil.copytree(root / "book" / folder, tmp_path / "book" / folder)
    (tmp_path / "book" / "references.bib").write_text("")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/intro\n")
    (tmp_path / "book" / "intro.md").write_text("# Title\n\n$$ x^2 $$\n")
    strays = (
        ".venv/x",
        ".pytest_cache",
        "notebooks/.ipynb_checkpoints",
        "runs",
        "momentdp.egg-info",
    )
    for stray in strays:
        (tmp_path / stray).mkdir(parents=True)
        (tmp_path / stray / "README.md").write_text("# Stray\n\n[dead](nowhere.md)\n")
    code, log = build(tmp_path)
    assert code == 0, log
    assert load_tool("check_site").problems_of(tmp_path / "_build" / "html") == []
    page = (tmp_path / "_build" / "html" / "book" / "intro.html").read_text()
    assert "_static/mathjax/tex-svg.js" in page
    assert "THEBE_JS_URL" not in page
    (tmp_path / "book" / "intro.md").write_text("# Title\n\n[dead](nowhere.md)\n")
    for _ in range(2):
        code, log = build(tmp_path)
        assert code != 0
        assert "nowhere.md" in log


DRAW = """import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(2, 1))
_ = axes.plot([0, 1], [0, 1])
print("min 0 mean 0.5 max 1")"""


@pytest.mark.slow
def test_execution_is_byte_stable_and_a_failing_cell_leaves_the_file(root, tmp_path):
    good, bad = tmp_path / "good.ipynb", tmp_path / "bad.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(DRAW)]), good)
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), bad)
    before = bad.read_bytes()
    command = [sys.executable, str(root / "book" / "tools" / "execute.py")]

    def run(*paths):
        done = subprocess.run([*command, *paths], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    code, printed = run(good, bad)
    assert code == 1
    assert "ZeroDivisionError" in printed
    assert bad.read_bytes() == before
    first = good.read_bytes()
    assert b"image/png" in first
    time = good.stat().st_mtime_ns
    assert run("--check", good) == (0, f"{good}: sound\n")
    assert run(good) == (0, f"{good}: unchanged\n")
    assert good.read_bytes() == first
    assert good.stat().st_mtime_ns == time
    good.write_text(good.read_text().replace("[0, 1])", "[0, 1 / 0])"))
    code, printed = run("--check", good)
    assert code == 1
    assert "the code changed after its outputs were stored" in printed
    assert "execution counts are not 1..n" in run("--check", bad)[1]


@pytest.mark.slow
@pytest.mark.parametrize("address", ["", "https://github.com/someone/momentdp"])
def test_launch_button_is_there_only_with_an_address(root, tmp_path, address):
    text = (root / "_config.yml").read_text()
    assert '\n  url: ""\n' in text
    (tmp_path / "_config.yml").write_text(text.replace('  url: ""', f'  url: "{address}"'))
    for folder in ("_ext", "_static"):
        shutil.copytree(root / "book" / folder, tmp_path / "book" / folder)
    (tmp_path / "book" / "references.bib").write_text("")
    (tmp_path / "_toc.yml").write_text(
        "format: jb-book\nroot: book/intro\nchapters: [{file: notebooks/01_a}]\n"
    )
    (tmp_path / "book" / "intro.md").write_text("# Title\n")
    (tmp_path / "notebooks").mkdir()
    chapter = new_notebook(cells=[new_markdown_cell("# Chapter"), new_code_cell("1")])
    chapter.metadata.kernelspec = {"name": "python3", "display_name": "x", "language": "python"}
    nbformat.write(chapter, tmp_path / "notebooks" / "01_a.ipynb")
    code, log = build(tmp_path)
    assert code == 0, log
    page = (tmp_path / "_build" / "html" / "notebooks" / "01_a.html").read_text()
    launch = "mybinder.org/v2/gh/someone/momentdp/main?urlpath=lab/tree/notebooks/01_a.ipynb"
    assert (launch in page) == bool(address)
    assert ("mybinder" in page) == bool(address)
    assert 'href="../_sources/notebooks/01_a.ipynb"' in page  # the download button
