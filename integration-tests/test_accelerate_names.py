"""The names and attributes of the Accelerate that is installed here, compared with accel's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import accelerate_names
import pytest

from tools.harness.scripts import run_command

pytest.importorskip("accelerate")


def test_all_public_names_are_there_but_those_with_a_reason():
    names = accelerate_names.public_names()
    missing = [entry for entry in names if not accelerate_names.is_offered(entry)]
    assert [entry for entry in missing if accelerate_names.reason(entry) is None] == []
    assert len(accelerate_names.LEFT_OUT) <= 10
    assert (len(names) - len(missing), len(names)) == (844, 895)


@pytest.mark.engine("long")
def test_all_that_can_be_assigned_can_be_assigned_but_what_has_a_reason(tmp_path):
    theirs, ours = (assignable(package, tmp_path / package) for package in ("accelerate", "accel"))
    missing = {f"{kind}.{name}" for kind in theirs for name in set(theirs[kind]) - set(ours.get(kind, ()))}
    listed = accelerate_names.TABLE["not_assignable"]
    assert missing == {f"{kind}.{name}" for kind, names in listed.items() for name in names}


def assignable(package: str, folder: Path) -> dict[str, list[str]]:
    """Return the attributes by class, in their own process: both cannot be in one."""
    folder.mkdir()
    script = Path(__file__).parent / "libraries" / "attributes.py"
    command = [sys.executable, str(script), package, str(folder)]
    done = run_command(command, env={"OMP_NUM_THREADS": "1"}, timeout_s=200)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found
