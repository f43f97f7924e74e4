import pytest

from tools.release.artifacts import sha256_of
from tools.release.steps import Release, entry, step
from tools.setup.failures import SetupError
from tools.workspace import read_packages


def test_a_failure_names_the_package_and_the_step(capsys):
    with pytest.raises(SetupError, match=r"^accel-data: metadata: It lacks a licence\.$"):
        with step("accel-data", "metadata"):
            raise SetupError("It lacks a licence.")
    assert capsys.readouterr().err == "[dev] accel-data: metadata\n"


def test_the_table_has_every_file_with_size_and_digest(checkout, tmp_path):
    package = read_packages(checkout.root)["accel-data"]
    files = [tmp_path / name for name in ("accel_data-0.1.0-py3-none-any.whl", "accel_data-0.1.0.tar.gz")]
    for file in files:
        file.write_text(file.name)
    release = Release("accel-data-v0.1.0", package, ["contents", "torch 2.9.1: smoke test"])
    first, *lines, last = entry(release, files).splitlines()
    assert first == "accel-data 0.1.0  tag accel-data-v0.1.0"
    for line, file in zip(lines, files, strict=True):
        assert line.split() == [file.name, str(len(file.name)), "B", "sha256", sha256_of(file)]
    assert last == "  checked: contents; torch 2.9.1: smoke test"


def test_the_package_that_brings_the_site_is_known():
    with_site = [name for name, package in read_packages().items() if Release("", package).has_site]
    assert with_site == ["accel-launch"]
