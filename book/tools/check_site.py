"""Check a built book: `python book/tools/check_site.py _build/html`.

A reader without a network gets everything (no external script, style, font or image), each local
link and anchor resolves, each image exists and has alternative text, and the whole stays small.
Standard library only.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MAX_BYTES = 25 * 1024 * 1024
EXTERNAL = re.compile(r"^\s*(https?:)?//", re.IGNORECASE)
CSS_ASKS = re.compile(r"""(?:url\(|@import)\s*["']?\s*((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)
SCRIPT_URL = re.compile(r"""https?://(?!www\.w3\.org/)[^\s"'<>]+""")
# Attributes that a browser fetches by itself; <a href> is fetched only when the reader clicks.
FETCHED = {
    ("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src"),
    ("embed", "src"), ("object", "data"), ("video", "src"), ("video", "poster"), ("audio", "src"),
    ("track", "src"), ("input", "src"), ("image", "href"), ("use", "href"),
}  # fmt: skip


class Page(HTMLParser):
    """What one page asks for, links to and offers as anchors."""

    def __init__(self, text: str):
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.inline: list[tuple[str, str]] = []
        self.without_alt: list[str] = []
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = {name: value or "" for name, value in attrs}
        self.anchors.update(attributes[name] for name in ("id", "name") if name in attributes)
        self.fetched += [value for name, value in attributes.items() if (tag, name) in FETCHED]
        for candidate in attributes.get("srcset", "").split(","):
            self.fetched += candidate.split()[:1]
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        if tag == "meta" and attributes.get("http-equiv", "").lower() == "refresh":
            self.links.append(attributes.get("content", "").partition("url=")[2])
        if tag == "img" and not attributes.get("alt", "").strip():
            self.without_alt.append(attributes.get("src", "")[:60])
        if "style" in attributes:
            self.inline.append(("style", attributes["style"]))
        if tag in ("script", "style"):
            self._open = tag

    def handle_endtag(self, tag):
        if tag == self._open:
            self._open = ""

    def handle_data(self, data):
        if self._open:
            self.inline.append((self._open, data))


def problems_of(site: Path) -> list[str]:
    """Each fault of the built site in one line; an empty list when it is sound."""
    found = [] if (site / "index.html").is_file() else [f"{site}: no index.html"]
    # Templates and vendored demos of the theme under _static are not pages of the book.
    paths = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in paths}
    for path, page in pages.items():
        name = path.relative_to(site.resolve())
        found += [f"{name}: asks for {url}" for url in page.fetched if EXTERNAL.match(url)]
        found += [f"{name}: image without alternative text: {src}" for src in page.without_alt]
        for kind, text in page.inline:
            pattern = SCRIPT_URL if kind == "script" else CSS_ASKS
            found += [f"{name}: inline {kind} names {url}" for url in pattern.findall(text)]
        for url in page.fetched + page.links:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                found.append(f"{name}: no such file: {url}")
            elif parts.fragment and target in pages:
                anchors = pages[target].anchors
                if unquote(parts.fragment) not in anchors and parts.fragment not in anchors:
                    found.append(f"{name}: no such anchor: {url}")
    for style in sorted(site.rglob("*.css")):
        text = style.read_text(encoding="utf-8", errors="replace")
        found += [f"{style.relative_to(site)}: asks for {url}" for url in CSS_ASKS.findall(text)]
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    if size > MAX_BYTES:
        found.append(f"{site}: {size / 2**20:.1f} MB, more than {MAX_BYTES / 2**20:.0f} MB")
    return found


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python book/tools/check_site.py _build/html", file=sys.stderr)
        return 2
    site = Path(arguments[0])
    found = problems_of(site)
    for line in found:
        print(line, file=sys.stderr)
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{site}: {size / 2**20:.1f} MB, {len(found)} problems")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
