import pytest

from tools.site.built import problems


@pytest.fixture
def site(tmp_path):
    """Writes pages, and returns what is wrong with them."""

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.html").write_text(text)
        return problems(tmp_path)

    return write


def test_links_between_pages_are_followed(site):
    assert not site(
        one='<h1 id="a">A</h1><a href="two.html#b">b</a><a href="#a">a</a><a href="https://x.test">web</a>',
        two='<h2 id="b">B</h2><a href="/one.html?q=1">one</a><a href="mailto:x@y.test">mail</a>',
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone.html">x</a>', "one.html: `gone.html` leads nowhere"),
        ('<a href="#gone">x</a>', "one.html: `#gone` names an anchor that is not there"),
        ('<img src="gone.png">', "one.html: `gone.png` leads nowhere"),
        ('<script src="https://x.test/a.js"></script>', "one.html: loads `https://x.test/a.js`"),
        ('<link rel="stylesheet" href="//x.test/a.css">', "one.html: loads `//x.test/a.css`"),
    ],
)
def test_what_leads_nowhere_or_far_away_is_told(site, text, problem):
    assert site(one=text) == [problem]


def test_style_sheets_load_nothing_from_elsewhere(site, tmp_path):
    (tmp_path / "a.css").write_text("@font-face { src: url(https://x.test/font.woff2) }")
    assert site() == ["a.css: loads `https://x.test/font.woff2`"]
