from __future__ import annotations

import re
from pathlib import Path


def test_the_lines_of_the_readme_run(capsys):
    text = (Path(__file__).parent.parent / "README.md").read_text()
    for source in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(source, "README.md", "exec"), {})
    assert capsys.readouterr().out == "torch.Size([2, 3]) 0.5 64\n"
