"""Make the built pages readable without a network.

Two things in the stock theme reach out: MathJax from a CDN (formulas stay raw without it) and the
Thebe button's inline script. Here MathJax is the one file `tex-svg.js`, which needs no fonts, taken
from a hashed package of the lock; Thebe is left out of each page.
"""

import importlib.util
import shutil
from pathlib import Path


def _mathjax() -> Path:
    spec = importlib.util.find_spec("sphinx-mathjax-offline")  # its name has dashes: no import
    if spec is None or spec.origin is None:
        raise RuntimeError("sphinx-mathjax-offline is missing: install from requirements.lock")
    return Path(spec.origin).parent / "static" / "mathjax" / "tex-svg.js"


def _copy_mathjax(app, exception):
    if exception is None and app.builder.format == "html":
        target = Path(app.outdir, "_static", "mathjax")
        target.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(_mathjax(), target / "tex-svg.js")


def _without_thebe(app, pagename, templatename, context, doctree):
    def is_thebe(asset) -> bool:
        return "thebe" in f"{getattr(asset, 'filename', asset)} {vars(asset)}".lower()

    for kind in ("script_files", "css_files"):
        context[kind] = [asset for asset in context.get(kind, []) if not is_thebe(asset)]


def setup(app):
    app.config.mathjax_path = "mathjax/tex-svg.js"
    app.connect("build-finished", _copy_mathjax)
    app.connect("html-page-context", _without_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
