"""What the reference says of errors, read once from the sources for all tests of a process."""

import pytest

from tools.site.collecting import messages
from tools.site.raising import error_classes
from tools.site.sources import read_sources
from tools.workspace import read_packages


@pytest.fixture(scope="session")
def errors():
    """Return the error classes by name, and every message."""
    packages = read_packages()
    sources = read_sources(packages)
    classes = {each.name: each for each in error_classes(packages, sources)}
    return classes, list(messages(sources, set(classes)))
