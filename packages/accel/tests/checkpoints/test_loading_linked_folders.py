"""A folder of links, as the cache of the Hugging Face Hub is one, is a checkpoint to every reader."""

import os
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin, init_empty_weights
from accel_bigmodel import load_checkpoint_and_dispatch, load_checkpoint_in_model
from accel_checkpoint.command import command
from accel_checkpoint.merging import merge_fsdp_weights

pytestmark = pytest.mark.usefixtures("fresh_state")


def linked(folder, target, *, blobs):
    """Make ``target`` a copy of ``folder`` whose files are links, in its own folders, to ``blobs``."""
    blobs.mkdir(parents=True)
    for number, path in enumerate(sorted(folder.rglob("*"))):
        if path.is_dir():
            continue
        blob = path.rename(blobs / f"{number:04x}")
        link = target / path.relative_to(folder)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return target


@pytest.fixture(params=["models--a/snapshots/1234", "links"])
def places(request, tmp_path):
    """Return the folder of the links, and that of the files."""
    return tmp_path / request.param, tmp_path / (
        "models--a/blobs" if "models" in request.param else "store/7"
    )


def prepared(*, value):
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), foreach=True))
    accelerator.backward(model(torch.ones(1, 3)).sum())
    optimizer.step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return accelerator, model


def test_a_run_loads_a_folder_of_links(tmp_path, places, capsys):
    accelerator, model = prepared(value=2.5)
    accelerator.save_state(tmp_path / "a", max_shard_size=40)
    folder = linked(tmp_path / "a", places[0], blobs=places[1])
    with torch.no_grad():
        model[0].weight.zero_()
    accelerator.load_state(folder, verify=True)
    assert (model[0].weight == 2.5).all()
    for action in ("list", "verify"):
        assert command.run(Namespace(action=action, dir=str(folder.parent), json=False)) == 0
    assert capsys.readouterr().out.count(folder.name) == 2
    # What is saved there replaces the links, not what they lead to.
    before = {path.name: path.read_bytes() for path in places[1].iterdir()}
    accelerator.save_state(folder)
    assert {path.name: path.read_bytes() for path in places[1].iterdir()} == before
    assert not any(path.is_symlink() for path in folder.iterdir())


@pytest.mark.parametrize("size", ["10GB", 40])
def test_models_load_from_a_folder_of_links(tmp_path, places, size):
    accelerator, model = prepared(value=1.5)
    accelerator.save_model(model, tmp_path / "a", max_shard_size=size)
    folder = linked(tmp_path / "a", places[0], blobs=places[1])
    fresh = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    load_checkpoint_in_model(fresh, folder)
    assert (fresh[1].weight == 1.5).all()
    with init_empty_weights():
        empty = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    ready = load_checkpoint_and_dispatch(empty, folder, device_map={"": "cpu"})
    assert (ready[0].bias == 1.5).all()


def save_sharded(folder):
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    torch.manual_seed(3)
    model = accelerator.prepare(nn.Linear(3, 5))
    if not Path(folder).exists():
        accelerator.wait_for_everyone()
        accelerator.save_state(folder)
    accelerator.load_state(folder)
    return {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}


def test_parts_of_a_sharded_model_may_be_links(world, tmp_path, places):
    saved, _ = world(2).run(save_sharded, tmp_path / "a")
    folder = linked(tmp_path / "a", places[0], blobs=places[1])
    loaded, *_ = world(3).run(save_sharded, folder)
    assert loaded == saved
    merge_fsdp_weights(folder / "pytorch_model_fsdp_0", tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    assert {name: value.tolist() for name, value in merged.items()} == saved
