"""The built site in a real browser, read from its folder: nothing is asked of any server."""

import shutil

import pytest

from tools.commands.docs import SITE
from tools.workspace import ROOT

pytestmark = pytest.mark.engine("site")
SCREENSHOTS = ROOT / "build" / "site-screenshots"
PAGES = {
    "front": "index.html",
    "guide": "guides/data.html",
    "reference": "reference/packages/accel-data.html",
    "tables": "reference/settings.html",
}
WIDTHS_PX = {"phone": 390, "desktop": 1280}
VIEWS = [(page, width, scheme) for page in PAGES for width in WIDTHS_PX for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="`playwright` is not installed")
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def show(browser):
    """Return a function that opens a page, and what was asked of servers or went wrong meanwhile."""
    contexts, told = [], []

    def open_page(page, *, width="desktop", scheme="light"):
        size = {"width": WIDTHS_PX[width], "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme))
        tab = contexts[-1].new_page()
        tab.on(
            "request", lambda request: request.url.startswith(("file:", "data:")) or told.append(request.url)
        )
        tab.on("pageerror", lambda error: told.append(str(error)))
        tab.goto((SITE / PAGES[page]).as_uri())
        return tab, told

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize(("page", "width", "scheme"), VIEWS)
def test_a_page_can_be_read_by_everybody_and_asks_nobody(show, page, width, scheme):
    """Axe finds no serious fault, nothing sticks out of a phone, and nothing comes from elsewhere."""
    from axe_playwright_python.sync_playwright import Axe

    tab, told = show(page, width=width, scheme=scheme)
    assert tab.evaluate("document.body.getAttribute('data-md-color-scheme')") == (
        "slate" if scheme == "dark" else "default"
    )
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / f"{page}-{width}-{scheme}.png").write_bytes(tab.screenshot())
    assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS_PX[width]
    faults = Axe().run(tab).response["violations"]
    serious = [fault for fault in faults if fault["impact"] in ("serious", "critical")]
    assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in serious]
    assert not told


MESSAGES = {
    "ConfigError: `total_limit` must be a whole number of at least 1, or None (keep all), got 0.": (
        "run-total-limit-must-be"
    ),
    "error: `--num_processes` is 7, which cannot be divided among 2 machines equally.": (
        "request-num-processes-is-which-cannot-be-divided"
    ),
    "The tracker `wandb` has hung for 60 s, with 120 logged values not written.": "the-tracker-has-hung",
    "RuntimeError: No executable batch size found, reached zero.": "memory-no-executable-batch-size",
}
"""Messages as users have them, and a part of the address of what explains them."""


def test_search_finds_messages_with_values_in_them(show):
    tab, told = show("front")
    for message, address in MESSAGES.items():
        tab.locator("input.md-search__input").click()
        tab.keyboard.press("Control+A")
        tab.keyboard.insert_text(message)
        tab.keyboard.press("End")  # as a key goes up when one pastes by Ctrl+V
        tab.locator(f".md-search-result__link[href*='{address}']").first.wait_for()
    assert not told


def test_search_finds_a_name_without_a_server(show):
    tab, told = show("front")
    tab.locator("input.md-search__input").click()
    tab.keyboard.type("gather_for_metrics")
    tab.locator(".md-search-result__link", has_text="gather_for_metrics").first.wait_for()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / "search.png").write_bytes(tab.screenshot())
    assert not told
