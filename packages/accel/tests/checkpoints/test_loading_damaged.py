"""Damage is found before a load changes anything."""

from pathlib import Path

import pytest
import torch
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")
WIDTH = 2200
"""Weights of 19 MB, whose digest is computed by threads."""


def damage(path):
    """Flip a bit in the middle of a file, which is in a tensor."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        [byte] = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))


def prepared(value, **options):
    accelerator = Accelerator(cpu=True, **options)
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    accelerator.backward(model(torch.ones(1, WIDTH)).sum())
    optimizer.step()
    fill(model, value)
    return accelerator, model, optimizer


@torch.no_grad()
def fill(model, value):
    for parameter in model.parameters():
        parameter.fill_(value)


@pytest.mark.parametrize(
    ("form", "file"),
    [
        ("full", "model.safetensors"),
        ("full", "optimizer.bin"),
        ("sharded", "pytorch_model_fsdp_0/__0_0.distcp"),
        ("sharded", "optimizer_0/__0_0.distcp"),
        ("full", "random_states_0.pkl"),
    ],
)
@pytest.mark.parametrize("is_strict", [True, False])
def test_nothing_changes(tmp_path, form, file, is_strict):
    accelerator, model, optimizer = prepared(1.0)
    accelerator.save_state(tmp_path / "a", checkpoint_format=form)
    fill(model, 2.0)
    optimizer.param_groups[0]["lr"] = 0.5
    damage(tmp_path / "a" / file)
    before = torch.get_rng_state()
    with pytest.raises(CheckpointError, match=f"{file}` is not what was saved: its digest differs"):
        accelerator.load_state(tmp_path / "a", strict=is_strict)
    assert (next(model.parameters()) == 2.0).all()
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert torch.equal(torch.get_rng_state(), before)


def load_parts_of_which_one_is_damaged(folder):
    folder = Path(folder)
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator, model, _ = prepared(1.0, fsdp_plugin=plugin)
    accelerator.save_state(folder)
    fill(model, 2.0)
    if accelerator.is_main_process:
        damage(folder / "pytorch_model_fsdp_0" / "__1_0.distcp")
    accelerator.wait_for_everyone()
    try:
        accelerator.load_state(folder)
    except CheckpointError as error:
        return str(error), {float(one) for part in model.parameters() for one in part.to_local().unique()}


def test_no_rank_changes_anything_if_the_part_of_one_is_damaged(world, tmp_path):
    (on_rank_0, values), (on_rank_1, other_values) = world(2).run(
        load_parts_of_which_one_is_damaged, str(tmp_path / "a")
    )
    assert values == other_values == {2.0}
    assert "__1_0.distcp` is not what was saved: its digest differs" in on_rank_1
    assert "was not loaded (rank 1: " in on_rank_0


def test_the_newest_other_checkpoint_is_named(tmp_path):
    accelerator, *_ = prepared(1.0)
    for name in ("checkpoint_0", "checkpoint_1", "checkpoint_2"):
        accelerator.save_state(tmp_path / name)
    damage(tmp_path / "checkpoint_2" / "model.safetensors")
    with pytest.raises(CheckpointError, match="The newest complete one next to it is `.*checkpoint_1`"):
        accelerator.load_state(tmp_path / "checkpoint_2")
