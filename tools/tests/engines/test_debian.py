import os

import pytest

from tools.engines.debian import install_packages, missing_packages
from tools.setup.running import SetupError

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the programs of Debian are played by shell scripts")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that puts a shell script on a PATH that has nothing else of Debian."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))

    def install(name, body):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    return install


def test_a_package_that_was_removed_is_missing_like_one_that_never_was_there(program):
    program("dpkg-query", "echo 'munge installed'; echo 'mpich config-files'; exit 1")
    assert missing_packages(["mpich", "munge", "slurmd", "munge"]) == ["mpich", "slurmd"]


def test_without_dpkg_all_are_missing(program):
    assert missing_packages(["slurmd", "munge"]) == ["munge", "slurmd"]


def test_nothing_is_asked_for_no_packages(program):
    program("dpkg-query", "echo 'called' >&2; exit 2")
    assert missing_packages([]) == []


def test_lists_are_renewed_and_nothing_recommended_is_installed(program, tmp_path, capsys):
    program("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {tmp_path}/calls')
    install_packages(["slurmd", "munge"], log=tmp_path / "logs" / "apt.log")
    assert (tmp_path / "calls").read_text().splitlines() == [
        "noninteractive update",
        "noninteractive install --yes --no-install-recommends munge slurmd",
    ]
    begun, ended = capsys.readouterr().err.splitlines()
    assert begun.startswith("[dev] apt-get installs munge slurmd (log: ")
    assert ended.endswith(" s")


def test_what_apt_get_refuses_is_one_line(program, tmp_path):
    program("apt-get", "echo 'Reading lists'; echo 'E: Unable to locate package slurmd'; exit 100")
    with pytest.raises(
        SetupError, match=r"apt-get failed \(E: Unable to locate package slurmd\)\. Log: .*apt\.log"
    ):
        install_packages(["slurmd"], log=tmp_path / "apt.log")


def test_another_system_is_told_what_is_needed(program, tmp_path):
    with pytest.raises(SetupError, match="There is no apt-get here to install munge, slurmd"):
        install_packages(["slurmd", "munge"], log=tmp_path / "apt.log")
