import subprocess

import pytest

from tools.checks.origin import problems


def test_a_tidy_checkout_is_fine(checkout):
    assert problems(checkout.root) == []


@pytest.mark.parametrize(
    "text",
    [
        "see /home/anna/notes",
        "cd /Users/bob/code",
        "/root/.cache/x",
        "/work/data/set",
        "rm -r /tmp/w/build",
        "<<<<<<< HEAD",
    ],
)
def test_a_machine_or_a_leftover_is_told(checkout, text):
    checkout.write("docs/guide.md", f"# Guide\n\n{text}\n")
    (problem,) = problems(checkout.root)
    assert problem.startswith("docs/guide.md:3: ")


@pytest.mark.parametrize(
    "text", ["rm /tmp/n", "packages/work/x", "https://example.org/home/anna", "/home/you/data", "a ======= b"]
)
def test_what_only_resembles_it_is_fine(checkout, text):
    checkout.write("docs/guide.md", f"{text}\n")
    assert problems(checkout.root) == []


def test_what_git_ignores_is_not_read(checkout):
    subprocess.run(["git", "init", "--quiet"], cwd=checkout.root, check=True, timeout=30)
    checkout.write(".gitignore", "notes/\n")
    checkout.write("notes/mine.md", "/home/anna/x\n")
    assert problems(checkout.root) == []
