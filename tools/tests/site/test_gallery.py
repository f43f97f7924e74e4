import pytest
import yaml

from tools.site.gallery import gallery_pages, subjects_of
from tools.workspace import ROOT

SUBJECTS = {"Parts": {"metrics": "Metrics"}}


def example(docs, *, picture=True, output=True, script='"""Count to one.\n\nSlowly."""\nprint(1)\n'):
    """Write an example with one of the names that are recorded, its picture and its output."""
    for folder in ("examples/output", "images"):
        (docs / folder).mkdir(parents=True)
    (docs / "examples" / "metrics.py").write_text(script)
    if picture:
        (docs / "images" / "metrics.png").touch()
    if output:
        (docs / "examples" / "output" / "metrics.txt").write_text("$ python one.py\n1\n")
    return docs


@pytest.fixture(scope="module")
def pages():
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)["nav"]
    return dict(gallery_pages(ROOT / "docs", subjects_of(nav)))


def test_every_example_has_a_card_and_a_page(pages):
    docs = ROOT / "docs"
    overview = pages["examples/index.md"]
    for script in (docs / "examples").glob("*.py"):
        assert f"]({script.stem}.md)** `{script.name}`" in overview
        assert "## The script\n" in pages[f"examples/{script.stem}.md"]
    assert "](../images/digits.png)" in overview
    assert "notebook_launcher(train" in pages["examples/notebook.md"]
    assert "## src/delayed_averaging/strategy.py\n" in pages["examples/own_strategy.md"]


def test_every_page_shows_a_picture_and_an_output(pages):
    without = [
        page
        for page, text in pages.items()
        if page != "examples/index.md" and ("](../images/" not in text or "\n```text\n$ " not in text)
    ]
    assert not without


def test_a_recorded_output_is_shown(tmp_path):
    page = dict(gallery_pages(example(tmp_path), SUBJECTS))["examples/metrics.md"]
    assert "## Its output\n\n```text\n$ python one.py\n1\n```\n" in page
    assert page.startswith("# metrics.py\n\nCount to one.\n\nSlowly.")


def test_an_example_without_words_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"metrics.py` has no docstring"):
        dict(gallery_pages(example(tmp_path, script="print(1)\n"), SUBJECTS))


@pytest.mark.parametrize(("missing", "named"), [("picture", "picture"), ("output", "recorded output")])
def test_an_example_that_was_not_recorded_is_refused(tmp_path, missing, named):
    with pytest.raises(ValueError, match=rf"has no {named}. Run `python -m tools.site.record metrics`"):
        dict(gallery_pages(example(tmp_path, **{missing: False}), SUBJECTS))


def test_an_example_that_nobody_records_is_refused(tmp_path):
    docs = example(tmp_path)
    (docs / "examples" / "metrics.py").rename(docs / "examples" / "unknown.py")
    with pytest.raises(ValueError, match=r"unknown.py` has no entry in `tools/site/recordings.py`"):
        dict(gallery_pages(docs, {"Parts": {"unknown": "Unknown"}}))
