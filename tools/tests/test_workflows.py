import re

from tools.checks.dependencies import python_releases
from tools.workspace import ROOT, read_packages

CI = (ROOT / ".github" / "workflows" / "ci.yml").read_text()


def listed(name: str) -> list[str]:
    """Return the strings of the one matrix in CI that is called ``name``."""
    (found,) = re.findall(rf"^ +{name}: \[(.*?)\]", CI, re.MULTILINE)
    return re.findall(r"[\w.-]+", found)


def test_ci_runs_every_python_that_is_declared_on_linux_and_macos():
    declared = python_releases(next(iter(read_packages().values())))
    assert listed("python")[: len(declared)] == declared
    assert listed("os") == ["ubuntu-latest", "macos-latest"]


def test_ci_runs_the_oldest_and_the_newest_torch_that_the_readme_names():
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "reference" / "support.md").read_text()
    oldest, newest = re.search(r"torch (2\.\d+) to (2\.\d+)", readme).groups()
    assert listed("torch") == [oldest, newest]
    assert f"{oldest} (the oldest) and {newest} (the newest)" in page


def test_every_package_is_in_every_matrix_of_packages():
    for name in read_packages():
        assert len(re.findall(rf"^ +- (?:packages/)?{name}$", CI, re.MULTILINE)) == 3, name
