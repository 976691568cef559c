"""Each page as a reader meets it: on a desk and on a phone, by day and by night, without a network."""

import pytest

from momentdp import chapters, ledger

WIDTHS, MODES = (1280, 390), ("light", "dark")
FORMULAS = """() => [...document.querySelectorAll('.math')].filter(
  (m) => !m.querySelector('mjx-container svg') || m.querySelector('[data-mml-node=merror]')
).map((m) => m.textContent.slice(0, 80))"""
WIDE = """() => {
  const width = document.documentElement.clientWidth, root = document.documentElement;
  if (root.scrollWidth <= width) return [];
  return [...document.querySelectorAll('article *')]
    .filter((e) => e.getBoundingClientRect().right > width + 1).slice(0, 5)
    .map((e) => `${e.tagName}.${e.className}`).concat([`page is ${root.scrollWidth} wide`]);
}"""
ANCHORS = """() => [...document.querySelectorAll('a[href^="#"]')].map((a) => a.getAttribute('href'))
  .filter((h) => h.length > 1 && !document.getElementById(decodeURIComponent(h.slice(1))))"""

# The theme lets the keyboard reach what scrolls sideways, .3 s after the last change of width.
REACHABLE = """() => [...document.querySelectorAll('pre, .cell_output > .output')]
  .every((e) => e.scrollWidth <= e.clientWidth || e.tabIndex === 0)"""

WCAG = {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
# What another width or mode can change.
LOOKS = {"type": "rule", "values": ["color-contrast", "scrollable-region-focusable"]}


def serious(page, rules=WCAG) -> list[str]:
    """axe's findings of impact serious or critical, with the first element that each concerns.

    Formulas are left out, each a drawing of hundreds of strokes. No preload: it fetches style
    sheets, which a page that was opened from a file may not.
    """
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    options = {"preload": False, "runOnly": rules, "resultTypes": ["violations"]}
    found = axe.Axe().run(page, {"exclude": [["mjx-container"]]}, options).response["violations"]
    return [
        f"{v['id']} ({len(v['nodes'])}): {v['nodes'][0]['html'][:120]}"
        for v in found
        if v["impact"] in ("serious", "critical")
    ]


def test_a_page(page_name, tab):
    opened = tab()
    page = opened.open(page_name)
    assert page.evaluate(FORMULAS) == [], "formulas that were not set"
    assert page.evaluate(ANCHORS) == [], "links to anchors that are not there"
    found = {}
    for width in WIDTHS:
        for mode in MODES:
            page.set_viewport_size({"width": width, "height": 900})
            page.emulate_media(color_scheme=mode)
            page.wait_for_timeout(100)
            page.wait_for_function(REACHABLE)
            found[f"{width} {mode}: too wide"] = page.evaluate(WIDE)
            rules = {(1280, "light"): WCAG, (390, "dark"): LOOKS}.get((width, mode))
            found[f"{width} {mode}: axe"] = serious(page, rules) if rules else []
    assert {what: problems for what, problems in found.items() if problems} == {}
    assert opened.faults == []


def test_links_across_pages_resolve(site, load_tool):
    assert load_tool("check_site").problems_of(site) == []


FAULTY = """<!doctype html><html lang="en"><head><title>x</title></head><body><article>
<h1>x</h1><p style="color: #ccc; background: #fff">pale</p><div style="width: 3000px">wide</div>
<span class="math">\\(x^2\\)</span><a href="#nowhere">y</a>
<script>console.error('boom'); fetch('https://example.org/x.js').catch(() => 0)</script>
</article></body></html>"""


def test_each_check_bites(tab, tmp_path):
    faulty = tmp_path / "faulty.html"
    faulty.write_text(FAULTY)
    opened = tab()
    page = opened.page
    page.goto(faulty.as_uri())
    page.wait_for_timeout(200)
    assert page.evaluate(FORMULAS) and page.evaluate(ANCHORS) == ["#nowhere"]
    assert "page is" in page.evaluate(WIDE)[-1]
    assert any(finding.startswith("color-contrast") for finding in serious(page))
    assert any("boom" in fault for fault in opened.faults)
    assert any(fault.startswith("asked for https://example.org") for fault in opened.faults)


def test_the_ledger_is_filtered_and_each_row_leads_to_its_cell(tab):
    page = tab().open("notebooks/90_ledger.html")
    rows = page.locator("tr[data-verdict]")
    shown = page.locator("tr[data-verdict]:not(.filtered)")
    assert rows.count() == len(ledger.load())
    without = page.evaluate(
        "[...document.querySelectorAll('tr[data-verdict]')]"
        ".filter(row => !row.querySelector('a')).map(row => row.cells[0].textContent)"
    )
    assert without == []
    verdict, section = page.get_by_label("Verdict"), page.get_by_label("Section")
    verdict.select_option("exact")
    exact = shown.count()
    assert exact == page.locator("tr[data-verdict=exact]").count() > 0
    assert page.locator("#ledger-count").inner_text().startswith(f"{exact} of ")
    section.select_option(index=1)
    assert 0 < shown.count() < exact
    verdict.select_option("")
    section.select_option("")
    assert shown.count() == rows.count()
    shown.first.locator("a").click()
    page.wait_for_load_state()
    place = chapters.cell_of("identity.configs").replace("#", ".html#")
    assert page.url.endswith(place)
    assert page.locator(f"#{place.partition('#')[2]}").is_visible()
