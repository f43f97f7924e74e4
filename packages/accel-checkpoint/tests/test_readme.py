from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_the_example_continues_after_it_was_interrupted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    PartialState(cpu=True)
    text = (Path(__file__).parent.parent / "README.md").read_text()
    [source] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    def trained(code):
        torch.manual_seed(0)
        names = {}
        exec(compile(code, "README.md", "exec"), names)
        return names["model"].state_dict()

    expected = trained(source.replace("runs/linear", "runs/unbroken"))
    trained(source.replace("100)", "60)"))  # ends after the checkpoint of step 50
    assert sorted(path.name for path in (tmp_path / "runs" / "linear").iterdir()) == [
        "checkpoint_25",
        "checkpoint_50",
    ]
    again = trained(source)
    assert all(torch.equal(again[name], value) for name, value in expected.items())
    assert len(list((tmp_path / "runs" / "linear").iterdir())) == 3
