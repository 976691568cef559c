"""The built book in headless Chromium, opened from files, with no network to fall back on.

`make test-browser` builds the book and names its folder in BOOK_SITE; without it these tests have
nothing to look at.
"""

import os
import shutil
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
SITE = os.environ.get("BOOK_SITE")
CHROMIUM = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def pages() -> list[str]:
    """Every page of the book, relative to its folder."""
    if not SITE:
        return []
    found = [path.relative_to(SITE) for path in Path(SITE).rglob("*.html")]
    return sorted(str(path) for path in found if "_static" not in path.parts)


def address(name: str) -> str:
    return (Path(SITE).resolve() / name).as_uri()


def pytest_generate_tests(metafunc):
    if "page_name" in metafunc.fixturenames:
        metafunc.parametrize("page_name", pages() or ["no book"])


@pytest.fixture(scope="session")
def browser():
    if not SITE:
        pytest.skip("no built book: BOOK_SITE is not set (run `make test-browser`)")
    if not CHROMIUM:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} on PATH, and CHROMIUM is not set")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--disable-background-networking"]
        )
        yield browser
        browser.close()


FORWARDED = """() => document.readyState === 'complete'
  && !document.querySelector('meta[http-equiv="refresh" i]')"""


class Tab:
    """One page, and what it said and asked for while it was open."""

    def __init__(self, browser, **options):
        self.context = browser.new_context(
            offline=True, viewport={"width": 1280, "height": 900}, **options
        )
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", lambda message: self._heard(message.type, message.text))
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("request", lambda request: self._asked(request.url))
        self.page.on("requestfailed", lambda request: self.faults.append(f"failed: {request.url}"))

    def _heard(self, kind: str, text: str):
        if kind in ("error", "warning"):
            self.faults.append(f"console {kind}: {text}")

    def _asked(self, url: str):
        if not url.startswith(("file:", "data:", "blob:")):
            self.faults.append(f"asked for {url}")

    def open(self, name: str):
        self.page.goto(address(name))
        # The first page forwards to the introduction, at once but after it has loaded: without
        # this wait, what is asked next is answered by the one page or by the other.
        self.page.wait_for_function(FORWARDED)
        self.page.wait_for_load_state()
        # Formulas are set after loading; a page without any has no MathJax.
        self.page.wait_for_function("!window.MathJax || MathJax.startup?.promise")
        self.page.evaluate("window.MathJax ? MathJax.startup.promise.then(() => 0) : 0")
        return self.page


@pytest.fixture
def uri():
    """The address of a page, by its name."""
    return address


@pytest.fixture
def site(browser) -> Path:
    """The folder of the built book."""
    return Path(SITE)


@pytest.fixture
def tab(browser):
    """A function that opens a Tab (options of Playwright's new_context); all close afterwards."""
    opened = []

    def make(**options) -> Tab:
        opened.append(Tab(browser, **options))
        return opened[-1]

    yield make
    for one in opened:
        one.context.close()
