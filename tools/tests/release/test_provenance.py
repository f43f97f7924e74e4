import subprocess

import pytest

from tools.release.provenance import require_green, require_on_main
from tools.setup.failures import SetupError


def git(folder, *words):
    identity = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def run_of_ci(status, conclusion, day):
    return {"status": status, "conclusion": conclusion, "createdAt": f"2031-01-0{day}T00:00:00Z"}


@pytest.fixture
def clone(tmp_path):
    """A clone of a repository with one commit on main."""
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "origin")
    git(tmp_path / "origin", "commit", "--quiet", "--allow-empty", "-m", "first")
    git(tmp_path, "clone", "--quiet", "origin", "clone")
    return tmp_path / "clone"


def test_a_commit_on_main_may_be_released_also_an_older_one(clone):
    commit = require_on_main(clone)
    git(clone.parent / "origin", "commit", "--quiet", "--allow-empty", "-m", "second")
    git(clone, "fetch", "--quiet")
    assert require_on_main(clone) == commit


def test_a_commit_beside_main_is_refused(clone):
    git(clone, "commit", "--quiet", "--allow-empty", "-m", "aside")
    with pytest.raises(SetupError, match="is not on origin/main"):
        require_on_main(clone)


def test_a_clone_without_main_is_told_what_it_lacks(clone):
    git(clone, "update-ref", "-d", "refs/remotes/origin/main")
    with pytest.raises(SetupError, match="no `origin/main` here"):
        require_on_main(clone)


def test_the_newest_run_of_ci_decides():
    failed, passed = run_of_ci("completed", "failure", 1), run_of_ci("completed", "success", 2)
    require_green("abc", [failed, passed])
    with pytest.raises(SetupError, match=r"for abc: failure\. Push the tag again"):
        require_green("abc", [passed, {**failed, "createdAt": "2031-01-03T00:00:00Z"}])


@pytest.mark.parametrize(
    ("runs", "told"),
    [([], "never ran for abc"), ([run_of_ci("in_progress", "", 1)], "for abc: in_progress")],
)
def test_ci_that_has_not_passed_yet_is_told(runs, told):
    with pytest.raises(SetupError, match=told):
        require_green("abc", runs)
