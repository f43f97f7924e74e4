import pytest

from tools.site.gallery import gallery_pages
from tools.workspace import ROOT


def test_every_example_has_a_card_and_a_page():
    docs = ROOT / "docs"
    pages = dict(gallery_pages(docs))
    overview = pages["examples/index.md"]
    for script in (docs / "examples").glob("*.py"):
        assert f"**[{script.name}]({script.stem}.md)**" in overview
        assert "## The script\n" in pages[f"examples/{script.stem}.md"]
    assert "](../images/digits.png)" in overview
    assert "notebook_launcher(train" in pages["examples/notebook.md"]
    assert "## src/delayed_averaging/strategy.py\n" in pages["examples/own_strategy.md"]


def test_a_recorded_output_is_shown(tmp_path):
    folder = tmp_path / "examples"
    (folder / "output").mkdir(parents=True)
    (folder / "one.py").write_text('"""Count to one.\n\nSlowly."""\nprint(1)\n')
    (folder / "output" / "one.txt").write_text("1\n")
    page = dict(gallery_pages(tmp_path))["examples/one.md"]
    assert "## Its output\n\n```text\n1\n```\n" in page
    assert page.startswith("# one.py\n\nCount to one.\n\nSlowly.")


def test_an_example_without_words_is_refused(tmp_path):
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "one.py").write_text("print(1)\n")
    with pytest.raises(ValueError, match="one.py` has no docstring"):
        dict(gallery_pages(tmp_path))
