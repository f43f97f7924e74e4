import pytest

from tools.site.places import for_site, is_made, page_of


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("docs/train/data.md", "train/data.md"),
        ("docs/images/slurm.svg", "images/slurm.svg"),
        ("docs/examples/digits.py", "examples/digits.md"),
        ("docs/examples/own_strategy", "examples/own_strategy.md"),
        ("docs/examples/notebook.ipynb", "examples/notebook.md"),
        ("docs/examples/", "examples/index.md"),
        ("docs/decisions", "decisions/index.md"),
        ("packages/accel-ops", "reference/packages/accel-ops.md"),
        ("packages/accel-ops/README.md", "reference/packages/accel-ops.md"),
        ("packages/accel-ops/CHANGELOG.md", "project/changelogs/accel-ops.md"),
        ("README.md", "index.md"),
        ("packages/accel-ops/src", None),
        ("docs/train", None),
    ],
)
def test_files_have_their_page(path, page):
    assert page_of(path) == page


def test_links_lead_to_pages_and_others_become_text():
    text = "[a](../guides/a.md#there) [b](../../packages/accel-ops) ![c](../images/c.png) "
    text += "[d](../../pyproject.toml) [e](#e)"
    assert for_site(text, source="docs/start/x.md", page="start/x.md") == (
        "[a](../guides/a.md#there) [b](../reference/packages/accel-ops.md) ![c](../images/c.png) d [e](#e)"
    )


def test_links_of_files_outside_docs_are_seen_from_their_page():
    text = "[a](../../docs/guides/a.md) [b](../accel)"
    source, page = "packages/accel-ops/README.md", "reference/packages/accel-ops.md"
    assert for_site(text, source=source, page=page) == "[a](../../guides/a.md) [b](accel.md)"


def test_code_and_addresses_stay():
    text = "`[a](b.md)` [web](https://x.test/a.md)\n\n```python\nx[0](y.md)\n```\n"
    assert for_site(text, source="docs/x.md", page="x.md") == text


def test_pages_of_the_site_alone_are_known():
    assert is_made("docs/reference/cli/launch.md")
    assert not is_made("docs/reference/devices.md")
