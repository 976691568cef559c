"""What pages say about the book itself, read at build time so that it cannot grow old.

- ``{ledger-summary}``: how many of the paper's numbers have which verdict, and how many of these
  could not have another one.
- ``{execution-status}``: each chapter, whether its outputs are those of its code, how long it ran,
  and all of them together.
- ``{versions}``: the pinned versions that decide a number.
- The ledger page gets filters. Rows of the ledger lead to the cell that computes them, which
  `momentdp.chapters.CELLS` names.
"""

import importlib.util
import json
import re
from pathlib import Path

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

LEDGER = "notebooks/90_ledger"
PINNED = ("jax", "numpy", "scipy", "optax", "jax-privacy", "dp-accounting", "matfree", "pandas")


def notebooks(source: Path) -> dict[str, dict]:
    """Chapter -> the parsed notebook, in order."""
    found = sorted((source / "notebooks").glob("*.ipynb"))
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in found}


def title(notebook: dict) -> str:
    return "".join(notebook["cells"][0]["source"]).partition("\n")[0].lstrip("# ")


def table(head: list[str], rows: list[list]) -> nodes.table:
    """A table whose cells are texts or nodes."""
    group = nodes.tgroup(cols=len(head))
    group += [nodes.colspec(colwidth=1) for _ in head]
    for part, lines in ((nodes.thead(), [head]), (nodes.tbody(), rows)):
        for line in lines:
            row = nodes.row()
            for cell in line:
                inside = cell if isinstance(cell, nodes.Node) else nodes.Text(str(cell))
                row += nodes.entry("", nodes.paragraph("", "", inside))
            part += row
        group += part
    return nodes.table("", group)


class LedgerSummary(SphinxDirective):
    def run(self):
        from momentdp import ledger

        counts = ledger.counts()
        rows = counts[counts["rows"] > 0].reset_index().astype(str).to_numpy().tolist()
        return [table(["verdict", "numbers", "of these by construction"], rows)]


class ExecutionStatus(SphinxDirective):
    def run(self):
        source = Path(self.env.srcdir)
        tool = _tool(source)
        times, rows, totals = tool.times(source / "notebooks"), [], [0, 0]
        for chapter, notebook in notebooks(source).items():
            if f"notebooks/{chapter}" not in self.env.found_docs:
                continue
            code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
            ran = times.get(chapter, {})
            hashed = tool.fingerprint_of(["".join(cell["source"]) for cell in code])
            sound = notebook["metadata"].get(tool.FINGERPRINT) == hashed
            link = pending_xref(
                "", nodes.inline("", title(notebook)), refdomain="std", reftype="doc",
                reftarget=f"/notebooks/{chapter}", refexplicit=True, refwarn=True,
                refdoc=self.env.docname,
            )  # fmt: skip
            state = "those of its code" if sound else "of other code"
            totals = [totals[0] + len(code), totals[1] + ran.get("seconds", 0)]
            rows.append([link, len(code), state, ran.get("seconds", ""), ran.get("python", "")])
        rows.append(["all", totals[0], "", f"{totals[1]} ({totals[1] / 60:.0f} minutes)", ""])
        return [
            table(["chapter", "code cells", "outputs are", "processor seconds", "Python"], rows)
        ]


class Versions(SphinxDirective):
    def run(self):
        lock = (Path(self.env.srcdir) / "requirements.lock").read_text(encoding="utf-8")
        pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)", lock, re.MULTILINE))
        return [table(["library", "version"], [[name, pins[name]] for name in PINNED])]


def _tool(source: Path):
    specification = importlib.util.spec_from_file_location(
        "execute_tool", source / "book" / "tools" / "execute.py"
    )
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _cell_anchors(app, doctree):
    """The id of a code cell, which running it again does not change, is an anchor of its page."""
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix != ".ipynb":
        return
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for node in doctree.findall(nodes.container):
        if node.get("nb_element") == "cell_code":
            node["ids"].append(cells[node["cell_index"]]["id"])


def linked_rows(body: str) -> tuple[str, set[str]]:
    """A page with each id of the ledger, where it heads a row, linked to the cell that computes it;
    and these ids."""
    from momentdp import chapters, ledger

    ids, linked = set(ledger.load()["id"]), set()

    def link(found: re.Match) -> str:
        if found[1] not in ids:
            return found[0]
        linked.add(found[1])
        chapter, cell = chapters.cell_of(found[1]).split("#")
        return f'<th><a href="{chapter}.html#{cell}">{found[1]}</a></th>'

    return re.sub(r"<th>([\w.]+)</th>", link, body), linked


def _ledger_rows(app, pagename, templatename, context, doctree):
    from momentdp import ledger

    if not pagename.startswith("notebooks/"):
        return
    context["body"], linked = linked_rows(context["body"])
    if pagename == LEDGER:
        if missing := sorted(set(ledger.load()["id"]) - linked):
            raise ExtensionError(f"{LEDGER}: no row for {', '.join(missing)}")
        app.add_js_file("ledger.js", loading_method="defer")


def _list_roles(app, pagename, templatename, context, doctree):
    """docutils calls its bibliography a list and then gives it no items, which screen readers trip
    over."""
    body = context.get("body")
    if body and 'class="citation-list"' in body:
        context["body"] = body.replace('role="list" class="citation-list"', 'class="citation-list"')


def _no_button_without_address(app, config):
    """The theme fails on an empty address; here an empty address means no launch button."""
    if not config.html_theme_options.get("repository_url"):
        config.html_theme_options["launch_buttons"] = {}


def _plain_bars(app, what, name, obj, options, lines):
    """Docstrings write |x| and a*b as one reads them: no substitution, no emphasis. A name of the
    same module is no link, since public names are listed under another one."""
    for number, line in enumerate(lines):
        line = re.sub(r":func:`(\w+)`", r"``\1``", line)
        parts = line.split("``")
        parts[::2] = [re.sub(r"([|*])(?!\*)", r"\\\1", part) for part in parts[::2]]
        lines[number] = "``".join(parts)


def setup(app):
    app.add_directive("ledger-summary", LedgerSummary)
    app.add_directive("execution-status", ExecutionStatus)
    app.add_directive("versions", Versions)
    app.connect("config-inited", _no_button_without_address)
    # Before napoleon, which writes emphasis of its own.
    app.connect("autodoc-process-docstring", _plain_bars, priority=400)
    app.connect("html-page-context", _list_roles)
    app.connect("doctree-read", _cell_anchors)
    app.connect("html-page-context", _ledger_rows)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
