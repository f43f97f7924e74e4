import json

import pytest
import torch
from torch import nn

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_an_optimizer_belongs_to_the_model_whose_parameters_it_steps(tmp_path):
    accelerator = Accelerator(cpu=True)
    teacher, student, other = nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
    both = torch.optim.SGD([*teacher.parameters(), *student.parameters(), other.weight], lr=0.1)
    teacher, student, optimizer, both, other = accelerator.prepare(teacher, student, optimizer, both, other)
    content = accelerator._checkpointer.content()
    assert content.model_of(optimizer) is student
    assert content.model_of(both) is teacher
    assert content.model_of(torch.optim.SGD([torch.ones(1)], lr=0.1)) is None


def test_the_manifest_tells_strategy_format_and_classes(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_state(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "accel_checkpoint.json").read_text())
    assert (manifest["strategy"], manifest["model_format"]) == ("single", "full")
    assert manifest["objects"]["models"] == ["torch.nn.modules.linear.Linear"]
