import pytest

from tools.release.rehearsal import clone_of, git, tag_releases
from tools.setup.failures import SetupError
from tools.workspace import read_packages

DATE = "2031-02-03"
DATA = "packages/accel-data"


@pytest.fixture
def repository(checkout):
    """A repository in which `accel` needs accel-data, and nothing was released yet."""
    checkout.replace("packages/accel/pyproject.toml", '"numpy>=1.26"', '"accel-data~=0.1.0"')
    git(checkout.root, "init", "--quiet")
    git(checkout.root, "add", ".")
    git(checkout.root, "commit", "--quiet", "--message", "first")
    return checkout


@pytest.fixture
def clone(repository, tmp_path_factory):
    return clone_of(repository.root, tmp_path_factory.mktemp("rehearsal"))


def test_a_rehearsal_bumps_and_tags_in_the_clone_alone(repository, clone):
    before = git(repository.root, "rev-parse", "HEAD")
    tags = tag_releases(clone, "minor", date=DATE)
    assert tags.index("accel-data-v0.2.0") < tags.index("accel-v0.2.0")
    assert len(tags) == len(read_packages(clone))
    assert '"accel-data~=0.2.0"' in (clone / "packages/accel/pyproject.toml").read_text()
    assert git(clone, "status", "--porcelain") == ""
    assert git(repository.root, "rev-parse", "HEAD") == before
    assert git(repository.root, "tag", "--list") == git(repository.root, "status", "--porcelain") == ""


def test_what_is_not_committed_is_left_out_and_said(repository, tmp_path_factory, capsys):
    repository.write(f"{DATA}/README.md", "half done")
    clone = clone_of(repository.root, tmp_path_factory.mktemp("rehearsal"))
    assert (clone / DATA / "README.md").read_text() == "# accel-data\n"
    assert "changes that are not committed: the rehearsal leaves them out" in capsys.readouterr().err


def test_a_version_with_a_date_is_taken_as_it_stands(clone):
    tag_releases(clone, "minor", date=DATE)
    for tag in git(clone, "tag", "--list").split():
        git(clone, "tag", "--delete", tag)
    assert "accel-data-v0.2.0" in tag_releases(clone, "minor", date=DATE)


def test_only_what_has_no_tag_yet_is_released(clone):
    tag_releases(clone, "minor", date=DATE)
    with pytest.raises(SetupError, match="nothing is to be released"):
        tag_releases(clone, "minor", date=DATE)
    changelog = clone / DATA / "CHANGELOG.md"
    changelog.write_text(f"## Unreleased\n\n- More.\n\n{changelog.read_text()}")
    git(clone, "commit", "--quiet", "--all", "--message", "more")
    assert tag_releases(clone, "patch", date=DATE) == ["accel-data-v0.2.1"]


def test_a_failure_of_git_is_told_in_its_words(tmp_path):
    with pytest.raises(SetupError, match=r"`git rev-parse HEAD` failed in .*: fatal: not a git repository"):
        git(tmp_path, "rev-parse", "HEAD")
