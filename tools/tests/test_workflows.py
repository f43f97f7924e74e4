import re
import shlex
from importlib.util import find_spec

import pytest
import yaml

from tools.checks.dependencies import python_releases
from tools.front_door import build_parser
from tools.release.places import NOTES, SBOM
from tools.setup.torch_release import OLDEST_AND_NEWEST, torch_floor
from tools.workspace import ROOT, read_packages

WORKFLOWS = ROOT / ".github" / "workflows"
CI = (WORKFLOWS / "ci.yml").read_text()
RELEASE = yaml.safe_load((WORKFLOWS / "release.yml").read_text())["jobs"]


def listed(name: str) -> list[str]:
    """Return the strings of the one matrix in CI that is called ``name``."""
    (found,) = re.findall(rf"^ +{name}: \[(.*?)\]", CI, re.MULTILINE)
    return re.findall(r"[\w.-]+", found)


def commands_of(workflow: str) -> list[list[str]]:
    """Return the words of everything that a workflow runs with our Python; what CI fills in is a package."""
    jobs = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"].values()
    runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
    texts = [re.sub(r"\"\$(PACKAGE|PART|TORCH)\"", "accel-data", run) for run in runs]
    return [shlex.split(text.replace("$GITHUB_REF_NAME", "accel-data-v0.2.0")) for text in texts]


def used(job: str) -> list[str]:
    """Return the actions that a job of the release uses."""
    return [step["uses"].split("@")[0] for step in RELEASE[job]["steps"] if "uses" in step]


def test_ci_runs_every_python_that_is_declared_on_linux_and_macos():
    declared = python_releases(next(iter(read_packages().values())))
    assert listed("python")[: len(declared)] == declared
    assert listed("os") == ["ubuntu-latest", "macos-latest"]


def test_ci_and_releases_test_the_oldest_and_the_newest_torch_that_the_readme_names():
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "reference" / "support.md").read_text()
    oldest, newest = re.search(r"torch (2\.\d+) to (2\.\d+)", readme).groups()
    assert listed("torch") == [oldest, newest] == list(OLDEST_AND_NEWEST)
    assert torch_floor(read_packages().values()) == oldest
    assert f"{oldest} (the oldest) and {newest} (the newest)" in page


def test_every_package_is_in_every_matrix_of_packages():
    for name in read_packages():
        assert len(re.findall(rf"^ +- (?:packages/)?{name}$", CI, re.MULTILINE)) == 3, name


@pytest.mark.parametrize("workflow", ["ci.yml", "release.yml"])
def test_workflows_use_actions_that_nobody_can_move_and_keep_no_credentials(workflow):
    jobs = yaml.safe_load((WORKFLOWS / workflow).read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    uses = [step["uses"] for step in steps if "uses" in step]
    assert [use for use in uses if re.fullmatch(r"[\w/.-]+@[0-9a-f]{40}", use) is None] == []
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert {step["with"]["persist-credentials"] for step in checkouts} == {False}
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []


@pytest.mark.parametrize("workflow", ["ci.yml", "release.yml"])
def test_workflows_call_modules_and_commands_that_exist(workflow):
    calls = 0
    for words in commands_of(workflow):
        if words[:2] == ["python", "tools/dev.py"]:
            ours = words[2:]
            if "--torch" in ours:
                ours[ours.index("--torch") + 1] = "2.9"
            assert build_parser().parse_args(ours)
            calls += 1
        elif words[:2] == ["python", "-m"] and words[2].startswith("tools."):
            assert find_spec(words[2]) is not None, words
            calls += 1
    assert calls >= 5


def test_what_is_released_is_made_by_the_command_that_is_rehearsed():
    runs = [step.get("run") for step in RELEASE["build"]["steps"]]
    assert runs[-4:-3] == ['python tools/dev.py release "$GITHUB_REF_NAME"']
    uploaded = [step["with"]["path"] for step in RELEASE["build"]["steps"][-3:]]
    folders = [folder.relative_to(ROOT).as_posix() for folder in (SBOM, NOTES)]
    assert uploaded == ["dist/", *(f"{folder}/" for folder in folders)]


def test_nothing_is_published_that_is_not_attested():
    (attest,) = [step for step in RELEASE["attest"]["steps"] if "attest" in step["uses"]]
    assert attest["with"]["subject-path"].split() == ["dist/*", "sbom/*"]
    for job in ("attach", "publish"):
        assert "attest" in RELEASE[job]["needs"]
    assert used("publish") == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert "gh release create" in RELEASE["attach"]["steps"][-1]["run"]
    assert " dist/* sbom/* " in RELEASE["attach"]["steps"][-1]["run"]


def test_each_job_of_the_release_has_the_permissions_it_needs_and_no_others():
    assert {name: job["permissions"] for name, job in RELEASE.items()} == {
        "build": {"actions": "read", "contents": "read"},
        "attest": {"attestations": "write", "id-token": "write"},
        "attach": {"contents": "write"},
        "publish": {"id-token": "write"},
    }
