import os

import pytest

from tools.setup import apart
from tools.setup.environment import Environment

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the fake Python is a shell script")


@pytest.fixture
def environment(tmp_path):
    """An environment whose Python makes the folder after `--target` and notes what is to go into it."""
    made = Environment(tmp_path / "venv")
    made.python.parent.mkdir(parents=True)
    made.python.write_text(
        '#!/bin/sh\nwhile [ "$1" != --target ]; do shift; done\nmkdir "$2"\n'
        f'shift 2; echo "$@" >> "{tmp_path}/installed"\n'
    )
    made.python.chmod(0o755)
    return made


def test_a_package_is_installed_once_for_each_requirement(environment, tmp_path):
    for requirement in ("one==1", "one==1", "one==2"):
        apart.install_apart(environment, tmp_path / "apart", requirement)
    words = (tmp_path / "installed").read_text().split()
    assert [word for word in words if word.startswith("one")] == ["one==1", "one==2"]


def test_the_peer_is_the_release_that_is_measured(environment, tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "PEER_FOLDER", tmp_path / "peer")
    apart.install_peer(environment)
    assert (tmp_path / "installed").read_text().startswith("accelerate==")
