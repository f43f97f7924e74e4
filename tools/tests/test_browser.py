"""The built site in a real browser, read from its folder: no server is contacted."""

import shutil

import pytest

from tools.site.build import SITE
from tools.workspace import ROOT

pytestmark = pytest.mark.engine("site")
SCREENSHOTS = ROOT / "build" / "site-screenshots"
PAGES = {
    "front": "index.html",
    "guide": "train/data.html",
    "reference": "reference/packages/accel-data.html",
    "tables": "reference/settings.html",
}
WIDTHS_PX = {"phone": 360, "desktop": 1280}
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
    """Return a function that opens a page, and the requests to servers or went wrong meanwhile."""
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
def test_a_page_is_accessible_and_requests_nothing(show, page, width, scheme):
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


QUESTIONS = {
    "gather_for_metrics": "reference/packages/accel.html",
    "effective batch size": "train/loop.html",
    "load 70B on 24 GB": "infer/big_models.html",
    "resume mid epoch": "train/data.html",
    "log only main process": "train/loop.html",
    "fsdp2 lora": "train/libraries.html",
    "slurm two nodes": "launch/slurm.html",
    "NCCL timeout hang": "help/troubleshooting.html",
    "migrate from accelerate": "start/from_accelerate.html",
    "own tracker": "train/trackers.html",
    "MPS mac": "launch/other_devices.html",
    "OOM": "help/troubleshooting.html",
}
"""What newcomers ask, in their words, and the page that answers it: the first or second that is found."""


def test_search_answers_questions_in_the_words_of_who_asks(show):
    tab, told = show("front")
    for words, page in QUESTIONS.items():
        tab.locator("input.md-search__input").click()
        tab.keyboard.press("Control+A")
        tab.keyboard.insert_text(words)
        tab.keyboard.press("End")  # as a key goes up when one pastes by Ctrl+V
        links = tab.locator(".md-search-result__item:nth-child(-n+2) .md-search-result__link")
        links.and_(tab.locator(f"[href*='{page}']")).first.wait_for()
    (SCREENSHOTS / "search.png").write_bytes(tab.screenshot())
    assert not told
