import pytest

from tools.site.raising import error_classes, error_page, reasons_in
from tools.site.sources import read_sources
from tools.workspace import read_packages


@pytest.fixture(scope="module")
def classes():
    packages = read_packages()
    return {each.name: each for each in error_classes(packages, read_sources(packages))}


def test_the_base_comes_first_and_every_error_is_known(classes):
    assert next(iter(classes)) == "AccelError"
    assert {"CheckpointError", "ConfigError", "LaunchError", "TrackerError", "UnknownNameError"} <= set(
        classes
    )


def test_reasons_come_from_docstrings(classes):
    reasons = dict(classes["ConfigError"].raised_by)
    assert "accel_launch.notebook_launcher" in reasons
    assert reasons["accel_launch.notebook_launcher"] == "If a value is wrong."


def test_reasons_are_read_by_class():
    docstring = "Do it.\n\nRaises:\n    KeyError: If it is\n        not there.\n    OSError: If not."
    assert dict(reasons_in(docstring)).keys() == {"KeyError", "OSError"}


def test_each_class_has_its_part_of_the_page(classes):
    page = error_page(classes.values())
    assert "## ConfigError\n" in page
    assert "| `accel_launch.notebook_launcher` | If a value is wrong. |" in page
