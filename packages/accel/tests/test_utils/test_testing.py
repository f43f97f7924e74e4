"""What libraries reach for in `accelerate.test_utils`."""

import json
import subprocess
import sys

from accel.test_utils.testing import execute_subprocess_async, get_launch_command


def test_all_names_are_there_and_none_is_loaded_before_it_is_used():
    script = """
import json, sys
import accel
loaded = [name for name in ("accel.test_utils", "unittest", "torch") if name in sys.modules]
import accel.test_utils.testing, accel.test_utils.training
missing = [
    f"{path}.{name}"
    for path in ("accel.test_utils", "accel.test_utils.testing", "accel.test_utils.training")
    for name in sys.modules[path].__all__
    if not hasattr(sys.modules[path], name)
]
print(json.dumps([loaded, missing, "pytest" in sys.modules]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], [], False]


def test_a_launch_command_launches(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from accel import Accelerator\n"
        "from accel.test_utils import are_the_same_tensors\n"
        "import torch\n"
        "accelerator = Accelerator()\n"
        "same = are_the_same_tensors(torch.ones(2))\n"
        "other = are_the_same_tensors(torch.ones(2) * accelerator.process_index)\n"
        "accelerator.print('SAME', same, other)\n"
    )
    done = execute_subprocess_async([*get_launch_command(num_processes=2, cpu=True), script], timeout=300)
    assert "SAME True False" in done.stdout
