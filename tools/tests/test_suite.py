import os
import shutil
import subprocess

import pytest

from tools.running import options_in_ci
from tools.suite import environ_of_suite


@pytest.mark.parametrize(("ci", "are_hidden"), [("true", True), ("", False)])
def test_in_ci_skips_fail_and_programs_of_engines_cannot_be_found_while_all_others_can(
    monkeypatch, tmp_path, ci, are_hidden
):
    monkeypatch.setenv("CI", ci)
    for name in ("first/mpirun", "first/mpirun.openmpi", "first/ssh", "first/ssh-add", "second/other"):
        program = tmp_path / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\necho it is here\n")
        program.chmod(0o755)
    (tmp_path / "links").mkdir()
    places = os.pathsep.join(str(tmp_path / name) for name in ("first", "missing", "second"))
    path = environ_of_suite({"PATH": places}, tmp_path / "links")["PATH"]
    for name in ("mpirun", "mpirun.openmpi", "ssh"):
        assert (shutil.which(name, path=path) is None) == are_hidden
    for name in ("ssh-add", "other"):
        assert subprocess.check_output([shutil.which(name, path=path)], text=True) == "it is here\n"
    assert ("--no-unexpected-skips" in options_in_ci()) == are_hidden
