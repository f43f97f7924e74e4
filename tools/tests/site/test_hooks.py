import re
from types import SimpleNamespace

import pytest

from accel_state.environment.settings import SETTINGS
from tools.site.hooks import completed, generated_pages, llms_text
from tools.workspace import ROOT

NAV = [{"Examples": [{"To start from": [{"Digits": "examples/digits.md"}]}]}]


@pytest.fixture(scope="module")
def pages():
    return generated_pages(NAV)


def test_patterns_become_pages_and_absent_pages_are_left_out():
    nav = [{"A": [{"One": "one.md"}, {"Gone": "gone.md"}, "more/*.md"]}, {"Empty": [{"Gone": "gone.md"}]}]
    pages = ["one.md", "more/index.md", "more/x.md", "more/y.md"]
    assert completed(nav, pages) == [{"A": [{"One": "one.md"}, "more/x.md", "more/y.md"]}]


def test_every_setting_is_on_its_page(pages):
    rows = [line for line in pages["reference/settings.md"].splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {7}
    assert {setting.variable for setting in SETTINGS.values()} <= {
        row.split("`")[1] for row in rows if "`" in row
    }


def test_code_on_pages_from_code_is_of_languages_whose_source_is_tested(pages):
    """Scripts and commands of examples, README files, and what commands print: all tested where they come from."""
    fences = {line.strip() for page in pages.values() for line in page.splitlines() if "```" in line}
    assert fences <= {"```", "```bash", "```python", "```text", "```toml"}


def test_each_decision_is_named_at_the_line_that_it_rules():
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "packages").glob("*/src/**/*.py")]
    decisions = {f"docs/decisions/{file.name}" for file in (ROOT / "docs" / "decisions").glob("*.md")}
    assert decisions == {name for text in sources for name in re.findall(r"docs/decisions/[\w-]+\.md", text)}


def page(title, place):
    return SimpleNamespace(title=title, is_page=True, children=None, file=SimpleNamespace(src_uri=place))


def test_programs_find_the_markdown_of_each_page_by_its_section():
    inner = SimpleNamespace(is_page=False, children=[page("Data", "train/data.md"), page("API", "api.md")])
    sections = [
        SimpleNamespace(title="Train", is_page=False, children=[page("Loop", "train/loop.md"), inner])
    ]
    config = {"site_name": "accel", "site_description": "One script."}
    text = llms_text(config, iter(sections), {"train/loop.md": "# Loop", "train/data.md": "# Data"})
    assert text == (
        "# accel\n\n> One script.\n\n## Train\n\n- [Loop](train/loop.md)\n- [Data](train/data.md)\n"
    )
