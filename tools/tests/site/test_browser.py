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
    "accel_state.errors.ConfigError: `total_limit` must be a whole number of at least 1, or None (keep all), got 0.": (
        "#configuration-total-limit-must-be"
    ),
    "error: `--num_processes` is 7, which cannot be divided among 2 machines equally. It counts the processes of all"
    " machines. Give a multiple of the machines.": "#request-num-processes-is-which-cannot-be-divided",
    "The tracker `wandb` has hung for 60 s, with 120 logged values not written.": "-the-tracker-has-hung",
    "RuntimeError: No executable batch size found, reached zero.": "memory-no-executable-batch-size",
    "UnknownNameError: Unknown precision `fp17`. Known: bf16, fp16, fp8, no. Did you mean `fp16`?": (
        "-unknown-precision"
    ),
    "ConfigError: `zero_stage` is `7`, but it must be one of: 0, 1, 2, 3.": (
        "#environment-is-but-it-must-be"
    ),
    "`sharding_strategy` is `FULL`, but it must be one of: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD.": (
        "#environment-is-but-it-must-be"
    ),
    "accel_state.errors.ConfigError: `kwargs_handlers` got a `int`, which is not supported. Known: AutocastKwargs,"
    " GradScalerKwargs, InitProcessGroupKwargs.": "handlers-kwargs-handlers-got-a-which-is-not-supported",
    "UserWarning: The layer `` takes 3.82 MiB and device `0` has 1000 bytes: the map offloads it, but it cannot be"
    " loaded there to run.": "#planning-the-layer-takes",
    "accel_state.errors.ConfigError: `12 apples` is not a size. Write a number and a unit, such as `5MB` or `10GiB`.": (
        "#byte_sizes-is-not-a-size"
    ),
    "accel_state.errors.CheckpointError: There is no checkpoint at `missing`. Check the path.": (
        "#formats-there-is-no-checkpoint-at"
    ),
    "accel_state.errors.ConfigError: `num_batches` must not be negative, got -1.": (
        "#skipping-num-batches-must-not-be-negative"
    ),
    "error: Unknown key `num_proceses` in the config file `c.yaml`. Did you mean `num_processes`?": (
        "#config-unknown-key-in-the-config-file"
    ),
    "error: `fp16` in the config file `d.yaml` is `maybe`, but it must be true or false (or yes/no, on/off, 1/0).": (
        "#config-fp16-in-the-config-file-is"
    ),
    "error: There is no folder `nowhere3`. Check its path.": "#command-there-is-no-folder",
    "error: `--gpu_ids` is `0,2`, but the GPUs of this machine are: none. Name some of these.": (
        "#request-gpu-ids-is-but-the-gpus"
    ),
    "error: `--no_python` cannot go with `--tpu`: the ranks import a Python script and call a function of it. Leave it"
    " out, and name a `.py` file.": "#launchers-no-python-cannot-go-with-tpu",
    "error: The script `nothere.py` does not exist in `/data`. For a module, use `-m`.": (
        "#commands-the-script-does-not-exist-in"
    ),
    "accel_state.errors.ConfigError: No tracker `wandb` was started. Started: none. Name it in `log_with`.": (
        "no-tracker-was-started"
    ),
    "error: There is no model `./nomodel`, neither as a folder here nor on the Hub. Check the name; a private model"
    " requires a login (`hf auth login`).": "#estimate-there-is-no-model-neither-as-a-folder-here",
}
"""Messages as users have them, and a part of the address of what explains them."""


WORDS = {
    "gather_for_metrics": "reference/packages/accel.html#accel.Accelerator.gather_for_metrics",
    "notebook_launcher": "reference/packages/accel-launch.html#accel_launch.notebook_launcher",
    "save_state": "reference/packages/accel.html#accel.Accelerator.save_state",
    "slurm": "guides/slurm.html",
    "fsdp": "guides/fsdp_and_deepspeed.html",
    "out of memory": "guides/troubleshooting.html",
}
"""What users look for, and where they are led first."""


@pytest.fixture
def search(show):
    """Return a function that searches, and waits until the first page leads where it should.

    Links of a page are its own and those of its sections that were found.
    """
    tab, told = show("front")

    def look_for(words, *addresses):
        tab.locator("input.md-search__input").click()
        tab.keyboard.press("Control+A")
        tab.keyboard.insert_text(words)
        tab.keyboard.press("End")  # as a key goes up when one pastes by Ctrl+V
        for number, address in enumerate(addresses):
            link = tab.locator(".md-search-result__item:first-child .md-search-result__link").nth(number)
            link.and_(tab.locator(f"[href*='{address}']")).wait_for()

    yield look_for
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    (SCREENSHOTS / "search.png").write_bytes(tab.screenshot())
    assert not told


def test_search_finds_messages_with_values_in_them_first(search):
    for message, address in MESSAGES.items():
        search(message, "reference/messages/", address)


def test_search_leads_to_names_and_guides_first(search):
    for words, address in WORDS.items():
        search(words, *filter(None, address.partition("#")[::2]))
