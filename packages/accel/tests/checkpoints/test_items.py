import json

import pytest
from torch import nn

from accel import Accelerator
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_the_manifest_reports_strategy_format_and_classes(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    accelerator.save_state(tmp_path / "a")
    manifest = json.loads((tmp_path / "a" / "accel_checkpoint.json").read_text())
    assert (manifest["strategy"], manifest["model_format"]) == ("single", "full")
    assert manifest["objects"]["models"] == ["torch.nn.modules.linear.Linear"]


def test_the_format_of_megatron_holds_no_other_models(tmp_path):
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(2, 2))
    with pytest.raises(CheckpointError, match=r"parts of a model of megatron-core, and this run has none"):
        accelerator.save_state(tmp_path / "a", checkpoint_format="megatron")
    assert not (tmp_path / "a").exists()
