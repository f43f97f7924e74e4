from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# A separate program, which drops its subcommand as `click` and others do, and which module runners may wrap.
PROGRAM = """
import json, sys
from accel_launch.request import interpreter_command
sys.argv.pop(1)
print(json.dumps(interpreter_command()))
"""


@pytest.mark.parametrize("options", [(), ("-O", "-X", "dev"), ("-W", "ignore", "-B"), ("-P", "-s")])
@pytest.mark.parametrize("how", ["file", "module", "code"])
def test_the_script_runs_under_our_python_with_its_options(tmp_path, options, how):
    (tmp_path / "tool.py").write_text(PROGRAM)
    program = {
        "file": [str(tmp_path / "tool.py")],
        "module": ["-m", "runpy", "tool"],
        "code": ["-c", PROGRAM],
    }[how]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    told = subprocess.run(
        [sys.executable, *options, *program, "train", "x.py"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PYTHONPATH": path},  # what the others say is an option to Python
    )
    python, *found = json.loads(told.stdout)
    assert python == sys.executable
    assert sorted(" ".join(found).replace("-Wignore", "-W ignore").split()) == sorted(options)
