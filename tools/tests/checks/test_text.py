import subprocess

import pytest

from tools.checks.text import dead_links, of_one_machine


@pytest.fixture
def root(tmp_path):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / "test_one.py").write_text("def test_it(): ...\n")
    return tmp_path


def test_links_that_lead_somewhere_and_brackets_in_code_are_fine(root):
    text = '[me](one.md#here) [again](<one.md> "title") [here](#a) [web](https://x.test/no.md) `test_one.py::test_it`\n'
    text += "`values[i](gone.md)`\n\n```python\nvalues[i](gone)\n```\n\n[ref]: one.md\n"
    (root / "one.md").write_text(text)
    assert list(dead_links(root)) == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("text\n[there](gone.md)\n", "one.md: `gone.md` leads nowhere"),
        ("![picture](images/gone.png)\n", "one.md: `images/gone.png` leads nowhere"),
        ("[ref]: gone.md\n", "one.md: `gone.md` leads nowhere"),
        ("`test_one.py::test_gone`\n", "one.md: there is no test `test_one.py::test_gone`"),
    ],
)
def test_links_to_nothing_and_tests_that_are_gone_are_found(root, text, problem):
    (root / "one.md").write_text(text)
    assert list(dead_links(root)) == [problem]


def test_a_machine_or_a_leftover_is_found(root):
    texts = [
        "see /home/anna/x",
        "cd /Users/bob/code",
        "/root/.cache/x",
        "/work/data",
        "rm /tmp/w/b",
        "<<<<<<< HEAD",
    ]
    (root / "guide.md").write_text("\n".join(texts))
    assert len(of_one_machine(root)) == len(texts)


def test_what_only_resembles_it_and_what_git_ignores_is_fine(root):
    fine = ["rm /tmp/n", "packages/work/x", "https://example.org/home/anna", "/home/you/data", "a ======= b"]
    (root / "guide.md").write_text("\n".join(fine))
    (root / ".gitignore").write_text("notes/\n")
    (root / "notes").mkdir()
    (root / "notes" / "mine.md").write_text("/home/anna/x\n")
    assert of_one_machine(root) == []
