"""What zizmor does not know of the workflows: that they test every Python, torch and package."""

import re
import tomllib

import yaml

from tools.workspace import ROOT, read_packages

WORKFLOWS = ROOT / ".github" / "workflows"
CI = yaml.safe_load((WORKFLOWS / "ci.yml").read_text())["jobs"]


def matrix_of(job):
    return CI[job]["strategy"]["matrix"]


def test_ci_runs_every_python_that_is_declared_on_linux_and_macos():
    classifiers = [package.project["classifiers"] for package in read_packages().values()]
    ((*declared,),) = {tuple(re.findall(r"Python :: (3\.\d+)", " ".join(each))) for each in classifiers}
    assert {each.project["requires-python"] for each in read_packages().values()} == {f">={declared[0]}"}
    assert f"Python {declared[0]} to {declared[-1]}" in (ROOT / "README.md").read_text()
    assert matrix_of("test")["python"][: len(declared)] == declared
    assert matrix_of("test")["os"] == ["ubuntu-latest", "macos-latest"]


def test_ci_tests_the_oldest_and_the_newest_torch_that_the_readme_names():
    readme = (ROOT / "README.md").read_text()
    page = (ROOT / "docs" / "reference" / "support.md").read_text()
    oldest, newest = re.search(r"torch (2\.\d+) to (2\.\d+)", readme).groups()
    assert matrix_of("torch")["torch"] == [oldest, newest]
    assert f"{oldest} (the oldest) and {newest} (the newest)" in page
    declared = {each for package in read_packages().values() for each in package.dependencies}
    assert [each for each in declared if each.startswith("torch")] == [f"torch>={oldest}"]


def test_every_package_is_in_every_matrix_of_packages():
    packages = read_packages()
    names = sorted(packages)
    environments = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["envs"]
    for name in ("alone", "isolated"):
        assert sorted(environments[name]["matrix"][0]["package"]) == names
    assert packages["accel"].required_names >= set(names) - {
        "accel"
    }  # the environment `wheels` installs `accel`
    assert sorted(matrix_of("isolated")["package"]) == sorted(matrix_of("torch")["package"]) == names
    parts = {f"packages/{name}" for name in names} | {"tools/tests"}
    assert set(matrix_of("test")["part"]) == parts
