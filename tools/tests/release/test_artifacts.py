import io
import tarfile
import zipfile

import pytest

from tools.release.artifacts import (
    Artifacts,
    artifacts_of,
    require_complete_wheel,
    require_same_bytes,
    require_same_contents,
    unpack,
)
from tools.setup.failures import SetupError
from tools.workspace import read_packages

INFO = "accel_data-0.1.0.dist-info"
GOOD = {f"{INFO}/licenses/LICENSE": "L", "accel_data/py.typed": "", "accel_data/__init__.py": "a = 1\n"}


@pytest.fixture
def package(checkout):
    return read_packages(checkout.root)["accel-data"]


def make_wheel(folder, files):
    folder.mkdir(exist_ok=True)
    file = folder / "accel_data-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(zipfile.ZipInfo(name), text)
    return file


def make_sdist(folder, text="x"):
    file = folder / "accel_data-0.1.0.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        member = tarfile.TarInfo("accel_data-0.1.0/pyproject.toml")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text.encode()))
    return file


def test_both_files_of_a_release_are_needed(package, tmp_path):
    wheel = make_wheel(tmp_path, GOOD)
    with pytest.raises(SetupError, match=r"accel_data-0.1.0.tar.gz` is missing. .*build --sdist accel-data"):
        artifacts_of(package, tmp_path)
    sdist = make_sdist(tmp_path)
    assert artifacts_of(package, tmp_path) == Artifacts(wheel, sdist)


def test_a_build_that_differs_from_the_one_before_is_refused(tmp_path):
    first = Artifacts(make_wheel(tmp_path / "a", GOOD), make_sdist(tmp_path / "a"))
    require_same_bytes(first, first)
    reordered = dict(reversed(GOOD.items()))
    second = Artifacts(make_wheel(tmp_path / "b", reordered), first.sdist)
    with pytest.raises(SetupError, match="`accel_data-.*whl` differs between two builds"):
        require_same_bytes(first, second)


def test_a_source_distribution_that_lacks_files_of_the_wheel_is_refused(tmp_path):
    wheel = make_wheel(tmp_path / "a", GOOD)
    require_same_contents(wheel, make_wheel(tmp_path / "b", dict(reversed(GOOD.items()))))
    fewer = make_wheel(tmp_path / "c", {name: text for name, text in GOOD.items() if "py.typed" not in name})
    with pytest.raises(SetupError, match=r"differs in accel_data/py.typed \(1 files\)"):
        require_same_contents(wheel, fewer)


@pytest.mark.parametrize("name", [f"{INFO}/licenses/LICENSE", "accel_data/py.typed"])
def test_a_wheel_has_its_licence_and_says_that_it_is_typed(package, tmp_path, name):
    require_complete_wheel(package, make_wheel(tmp_path, GOOD))
    with pytest.raises(SetupError, match=f"lacks {name}"):
        require_complete_wheel(package, make_wheel(tmp_path, {key: GOOD[key] for key in GOOD if key != name}))


def test_what_a_release_adds_to_a_wheel_has_to_be_in_it(package, tmp_path):
    with pytest.raises(SetupError, match=r"lacks accel_data/site/index\.html"):
        require_complete_wheel(package, make_wheel(tmp_path, GOOD), also=["accel_data/site/index.html"])


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("accel_data/tests/test_a.py", "belongs into no wheel"),
        ("accel_data/__pycache__/a.cpython-311.pyc", "belongs into no wheel"),
        ("tests/test_a.py", "outside of `accel_data`"),
    ],
)
def test_a_wheel_has_nothing_that_a_user_has_no_use_for(package, tmp_path, name, told):
    with pytest.raises(SetupError, match=told):
        require_complete_wheel(package, make_wheel(tmp_path, {**GOOD, name: ""}))


def test_a_source_distribution_is_unpacked_into_the_folder_of_the_project(tmp_path):
    assert (unpack(make_sdist(tmp_path), tmp_path / "out") / "pyproject.toml").read_text() == "x"
