"""`accel checkpoint show` and `diff` on what the `Accelerator` saves."""

import pytest
import torch
from torch import nn

from accel import Accelerator
from accel_backends import FullyShardedDataParallelPlugin
from accel_checkpoint.contents import contents_of, differences

pytestmark = pytest.mark.usefixtures("fresh_state")


def save_both(folder):
    torch.manual_seed(0)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))
    accelerator.save_state(f"{folder}/sharded")
    accelerator.save_state(f"{folder}/full", checkpoint_format="full")
    accelerator.backward(model(torch.ones(2, 3)).sum())
    optimizer.step()
    accelerator.save_state(f"{folder}/later", checkpoint_format="full")


def lines_of(old, new):
    return [" ".join(difference) for difference in differences(old, new, values=True)]


def test_the_same_weights_are_equal_whether_sharded_or_full(world, tmp_path):
    world(3).run(save_both, str(tmp_path))
    sharded, full, later = (tmp_path / name for name in ("sharded", "full", "later"))
    weights = {one.name: one.kind for one in contents_of(sharded) if one.group == "model 0"}
    assert weights == {
        "0.weight": "float32 (5, 3)",
        "0.bias": "float32 (5)",
        "1.weight": "float32 (1, 5)",
        "1.bias": "float32 (1)",
    }
    assert not [line for line in lines_of(sharded, full) if "model 0" in line]
    changed = [line for line in lines_of(sharded, later) if "model 0" in line]
    assert len(changed) == 4
    assert all("values differ, by at most 0.1" in line for line in changed)
