import subprocess

import pytest

from tools.checks.links import problems


@pytest.fixture
def pages(tmp_path):
    """Writes pages into a repository, and returns what is wrong with their links."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)

    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.md").write_text(text)
        return problems(tmp_path)

    return write


def test_links_that_lead_somewhere_are_fine(pages):
    assert not pages(
        one="# A `b` is C\n[two](two.md) [here](#a-b-is-c) ![there](two.md#more) [web](https://x.test/no.md)\n",
        two='# Same\n# Same\n## More\n[again](<one.md> "title") [back](/one.md) [second](#same-1)\n\n[ref]: one.md\n',
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text\n[there](gone.md)\n", "one.md:2: `gone.md` leads nowhere"),
        ("![picture](images/gone.png)\n", "one.md:1: `images/gone.png` leads nowhere"),
        ("[ref]: gone.md\n", "one.md:1: `gone.md` leads nowhere"),
        ("# Here\n[there](#gone)\n", "one.md:2: `#gone` names a heading that is not there"),
        ("```\n[code](code.md)\n```\n[there](gone.md)\n", "one.md:4: `gone.md` leads nowhere"),
    ],
)
def test_links_that_lead_nowhere_are_told(pages, text, problem):
    assert pages(one=text) == [problem]


def test_brackets_in_code_are_no_links(pages):
    assert not pages(one="`values[i](gone.md)`\n\n```python\n# Comment\nvalues[i](gone)\n```\n")
