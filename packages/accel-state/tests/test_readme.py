from __future__ import annotations

import re
from pathlib import Path

from tools.harness.scripts import run_script

README = Path(__file__).parents[1] / "README.md"


def test_the_example_runs_unchanged(tmp_path):
    example = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    script = tmp_path / "example.py"
    script.write_text(example[1], encoding="utf-8")
    ran = run_script(script)
    assert ran.returncode == 0, ran.stderr
    assert "1 process(es) on cpu, started by plain" in ran.stdout
    assert "rank 0 works on [1, 2, 3, 4]" in ran.stdout
    assert "bf16" in ran.stdout
