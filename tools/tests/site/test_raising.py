import pytest

from tools.site.raising import error_classes, error_pages
from tools.workspace import read_packages


@pytest.fixture(scope="module")
def classes():
    return {each.name: each for each in error_classes(read_packages())}


def test_the_base_comes_first_and_every_error_is_known(classes):
    assert next(iter(classes)) == "AccelError"
    assert {"CheckpointError", "ConfigError", "LaunchError", "TrackerError", "UnknownNameError"} <= set(
        classes
    )


def test_reasons_come_from_docstrings(classes):
    reasons = dict(classes["ConfigError"].raised_by)
    assert "accel_launch.notebook_launcher" in reasons
    assert reasons["accel_launch.notebook_launcher"] == "If a value is wrong."


def test_messages_have_an_ellipsis_for_what_is_computed(classes):
    messages = [message for _, message in classes["ConfigError"].messages]
    assert "Exactly one of `load_in_8bit` and `load_in_4bit` must be True." in messages
    assert any("must be `fp4` or `nf4`, not `…`" in message for message in messages)


def test_both_pages_are_made():
    pages = dict(error_pages(read_packages()))
    assert "## ConfigError\n" in pages["reference/errors.md"]
    assert (
        "- Exactly one of `load_in_8bit` and `load_in_4bit` must be True." in pages["reference/messages.md"]
    )
