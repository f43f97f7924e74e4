import pytest

from tools.commands.wheels import built_wheel
from tools.setup.failures import SetupError
from tools.workspace import read_packages


def test_the_wheel_that_lies_there_is_the_one_of_the_version(tmp_path):
    package = read_packages()["accel-data"]
    wheel = tmp_path / f"accel_data-{package.version}-py3-none-any.whl"
    (tmp_path / "accel_data-0.0.0-py3-none-any.whl").touch()
    with pytest.raises(
        SetupError, match=r"accel_data-.*is missing. `python -m tools.release.build accel-data`"
    ):
        built_wheel(package, tmp_path)
    wheel.touch()
    assert built_wheel(package, tmp_path) == wheel
