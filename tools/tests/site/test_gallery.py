import pytest
import yaml

from tools.site.gallery import PICTURES, gallery_pages, subjects_of
from tools.workspace import ROOT

SUBJECTS = {"Parts": {"metrics": "Metrics"}}


def example(docs, *, script='"""Count to one.\n\nSlowly."""\nprint(1)\n'):
    """Write an example with one of the names that have a picture, and its output."""
    (docs / "examples" / "output").mkdir(parents=True)
    (docs / "examples" / "metrics.py").write_text(script)
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


def test_an_example_without_a_picture_is_refused(tmp_path):
    docs = example(tmp_path)
    (docs / "examples" / "metrics.py").rename(docs / "examples" / "unknown.py")
    with pytest.raises(ValueError, match=r"Draw `docs/images/unknown.png`"):
        dict(gallery_pages(docs, {"Parts": {"unknown": "Unknown"}}))


def test_pictures_are_there_and_small():
    images = {file.stem: file.stat().st_size for file in (ROOT / "docs" / "images").glob("*.png")}
    assert set(PICTURES) <= set(images)
    assert max(images.values()) <= 60_000
