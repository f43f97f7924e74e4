import datetime
import json

import pytest

from tools.release.artifacts import Artifacts, sha256_of
from tools.release.sbom import as_json, read_tested, sbom_of
from tools.workspace import read_packages

TIME = datetime.datetime(2031, 2, 3, tzinfo=datetime.UTC)


@pytest.fixture
def artifacts(tmp_path):
    files = [tmp_path / "accel_launch-0.2.0-py3-none-any.whl", tmp_path / "accel_launch-0.2.0.tar.gz"]
    for file in files:
        file.write_text(file.name)
    return Artifacts(*files)


def bill(artifacts, tested):
    """Return the SBOM of accel-launch, which the library found to be valid CycloneDX 1.6."""
    package = read_packages()["accel-launch"]
    return json.loads(as_json(sbom_of(package, artifacts, tested=tested, timestamp=TIME)))


def test_it_describes_the_package_and_the_files_that_are_published(artifacts):
    found = bill(artifacts, {})
    itself = found["metadata"]["component"]
    version = read_packages()["accel-launch"].version
    assert (found["specVersion"], itself["purl"]) == ("1.6", f"pkg:pypi/accel-launch@{version}")
    assert itself["licenses"] == [{"expression": "Apache-2.0"}]
    hashes = {each["url"]: each["hashes"] for each in itself["externalReferences"]}
    assert hashes == {file.name: [{"alg": "SHA-256", "content": sha256_of(file)}] for file in artifacts.files}


def test_requirements_have_their_range_and_the_versions_they_were_tested_with(artifacts):
    found = bill(artifacts, {"torch": ["2.9.1", "2.15.0"]})
    torch = next(each for each in found["components"] if each["name"] == "torch")
    assert (torch["version"], torch["scope"]) == ("2.15.0", "required")
    told = {(each["name"], each["value"]) for each in torch["properties"]}
    assert told == {
        ("accel:requirement", "torch>=2.9"), ("accel:tested", "2.9.1"), ("accel:tested", "2.15.0"),
    }  # fmt: skip
    ray = next(each for each in found["components"] if each["name"] == "ray")
    assert (ray["scope"], ray["purl"]) == ("optional", "pkg:pypi/ray")


def test_the_same_files_give_the_same_sbom(artifacts):
    assert bill(artifacts, {}) == bill(artifacts, {})


def test_versions_of_several_environments_are_put_together(tmp_path):
    for name, versions in (
        ("old", {"Torch": "2.9.1", "numpy": "2.4"}),
        ("new", {"torch": "2.15.0", "numpy": "2.4"}),
    ):
        (tmp_path / name).write_text(json.dumps(versions))
    tested = read_tested([tmp_path / "old", tmp_path / "new"])
    assert tested == {"torch": ["2.9.1", "2.15.0"], "numpy": ["2.4"]}
