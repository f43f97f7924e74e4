from __future__ import annotations

import json
import subprocess
import sys
from types import ModuleType, SimpleNamespace

import pytest

from accel_launch.notebook.gpu_users import has_used_gpu


@pytest.mark.parametrize(("torch", "used"), [(None, False), (False, False), (True, True)])
def test_a_process_has_used_a_gpu_if_torch_reports_it(torch, used):
    modules: dict[str, ModuleType] = {}
    if torch is not None:
        modules["torch"] = SimpleNamespace(xpu=SimpleNamespace(is_initialized=lambda: torch), cuda=object())
    assert has_used_gpu(modules) is used


def test_the_import_and_its_line_are_found_behind_imports_that_do_not_use_a_gpu(tmp_path):
    (tmp_path / "asks.py").write_text("import torch\ntorch.cuda.is_available()\ntorch.cuda.device_count()\n")
    (tmp_path / "fails.py").write_text("raise OSError('not here')")
    (tmp_path / "ends.py").write_text("print('noise')\nraise SystemExit(2)")
    (tmp_path / "uses.py").write_text("import torch\n\ntorch.cuda.synchronize()\n")
    names = ["asks", "fails", "ends", "missing", "json", "uses"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "accel_launch.notebook.gpu_users"],
        input=json.dumps({"path": [str(tmp_path), *sys.path], "modules": names}),
        capture_output=True,
        text=True,
        timeout=90,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"module": "uses", "file": str(tmp_path / "uses.py"), "line": 3}
