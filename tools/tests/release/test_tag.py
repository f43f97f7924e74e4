import re

import pytest

from tools.release.changelog import notes_of
from tools.release.tag import package_of_tag
from tools.setup.failures import SetupError


def test_a_tag_names_its_package(checkout):
    assert package_of_tag("accel-data-v0.1.0", checkout.root).name == "accel-data"


@pytest.mark.parametrize("tag", ["v0.1.0", "accel-date-v0.1.0", "accel-data-0.1.0"])
def test_a_tag_of_another_form_is_refused(checkout, tag):
    with pytest.raises(SetupError, match="is no release tag"):
        package_of_tag(tag, checkout.root)


def test_a_tag_that_contradicts_the_source_is_refused(checkout):
    with pytest.raises(SetupError, match="the source of `accel-data` says 0.1.0"):
        package_of_tag("accel-data-v0.2.0", checkout.root)


def test_notes_are_the_section_of_the_version_alone():
    text = "# Log\n\n## 0.2.0 (2031-01-01)\n\n- Second.\n\n## 0.1.0 (2030-01-01)\n\n- First.\n"
    assert notes_of(text, "0.2.0") == "- Second.\n"
    assert notes_of(text, "0.1.0") == "- First.\n"
    with pytest.raises(SetupError, match="no section `## 0.3.0 "):
        notes_of(text, "0.3.0")


@pytest.mark.parametrize("heading", ["## Unreleased", "## 0.2.0 (unreleased)"])
def test_a_changelog_that_is_still_open_is_refused(heading):
    text = f"# Log\n\n{heading}\n\n- Second.\n\n## 0.1.0 (2030-01-01)\n\n- First.\n"
    for version in ("0.1.0", "0.2.0"):
        with pytest.raises(SetupError, match=f"open section `{re.escape(heading)}`"):
            notes_of(text, version)


@pytest.mark.parametrize("heading", ["## 0.2.0", "## 0.2.0 (soon)", "## 0.2.0.1 (2031-01-01)"])
def test_a_section_without_a_date_is_no_release(heading):
    with pytest.raises(SetupError, match="no section `## 0.2.0 \\(YYYY-MM-DD\\)`"):
        notes_of(f"# Log\n\n{heading}\n\n- Second.\n", "0.2.0")
