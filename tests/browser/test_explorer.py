"""The explorer: its numbers are Python's, a keyboard is enough, and a figure stands in for it."""

import pytest

import momentdp as mdp
from momentdp.studies import crossovers

PAGE = "book/explorer.html"
SETTINGS = [
    (0.4, 10.0, "constant", "a", 0.9),
    (0.4, 10.0, "constant", "b", 0.9),
    (0.2, 100.0, "cosine", "a", 0.5),
    (0.2, 10.0, "warmup_cosine", "b", 0.98),
    (0.4, 100.0, "step_decay", "a", 0.0),
]
STEPS = 128


@pytest.mark.parametrize("el, kappa, schedule, arm, momentum", SETTINGS)
def test_damages_are_those_of_python(tab, el, kappa, schedule, arm, momentum):
    page = tab().open(PAGE)
    setting = {"el": el, "kappa": kappa, "schedule": schedule, "arm": arm}
    shown = page.evaluate("([s, m]) => momentdpExplorer.damages(s, m)", [setting, momentum])
    spectrum = mdp.spectra.log_spaced(16, kappa)
    pool = crossovers.native_pool(el, kappa, STEPS, pool=list(shown))
    step = el * (1 - momentum) if arm == "b" else el
    rates = mdp.schedules.FAMILIES[schedule](STEPS, step)
    expected = {
        name: mdp.damage(m, mdp.Momentum(momentum), spectrum, rates) for name, m in pool.items()
    }
    assert len(shown) == 11
    assert shown == pytest.approx(expected, rel=2e-5)


def order(page) -> list[str]:
    return page.locator("#explorer-ranks tr").evaluate_all(
        "rows => rows.map(row => row.dataset.mechanism)"
    )


def test_the_table_shows_the_order_of_the_damages(tab):
    page = tab().open(PAGE)
    now = page.evaluate("momentdpExplorer.setting()")
    damages = page.evaluate("s => momentdpExplorer.damages(s, s.momentum)", now)
    assert order(page) == sorted(damages, key=damages.get)
    assert page.locator("#explorer-chart path[stroke-width='2.2']").count() == len(damages)


def test_a_keyboard_is_enough(tab):
    page = tab().open(PAGE)
    before = order(page)
    page.get_by_role("slider", name="Momentum").focus()
    page.keyboard.press("Home")
    assert page.locator("#explorer-momentum-value").inner_text() == "0"
    assert order(page) != before and order(page)[0] == "noisecurve"
    page.keyboard.press("End")
    assert page.locator("#explorer-momentum-value").inner_text() == "0.98"
    for _ in range(8):
        page.keyboard.press("ArrowLeft")
    assert order(page)[0] == "dense"
    for label in ("Step size", "Condition number", "Schedule", "the rate", "Show"):
        page.keyboard.press("Tab")
        focused = page.evaluate("document.activeElement.labels[0].textContent")
        assert label in focused
        if label == "the rate":
            page.keyboard.press("ArrowDown")
            assert order(page)[0] == "noisecurve"  # the effective step is held now
            assert "is first" in page.locator("#explorer-summary").inner_text()


@pytest.mark.parametrize("how", ["no script", "print"])
def test_a_figure_stands_in(tab, uri, how):
    opened = tab(java_script_enabled=how != "no script")
    page = opened.page
    page.goto(uri(PAGE))
    figure, live = page.locator("#explorer-static img"), page.locator("#momentdp-explorer")
    if how == "print":
        assert live.is_visible() and not figure.is_visible()
        page.emulate_media(media="print")
    assert figure.is_visible() and not live.is_visible()
