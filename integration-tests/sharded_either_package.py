"""Save shards with either package and load them with the other: `python sharded_either_package.py FOLDER`.

Accelerate has no sharded training on CPUs, but its functions for the files of a sharded model work there when they are
told that it has. What was saved is in FOLDER/PACKAGE-save.RANK, what was loaded in FOLDER/PACKAGE-load.RANK.
"""

import importlib
import json
import os
import shutil
import sys
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from either_package import plain
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard


def make_run(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(7, 33), nn.BatchNorm1d(33), nn.Linear(33, 33, bias=False), nn.Linear(33, 33, bias=False)
    )
    model[3].weight = model[2].weight
    fully_shard(model)
    groups = [
        {"params": [*model[0].parameters()], "lr": 0.02},
        {"params": [*model[1].parameters(), model[2].weight]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for _ in range(2 if seed == 1 else 1):
        model(torch.randn(4, 7)).square().mean().backward()
        optimizer.step()
    return model, optimizer


def of_peer(action, folder, model, optimizer):
    peer, tools = importlib.import_module("accelerate"), importlib.import_module("accelerate.utils")
    accelerator = peer.Accelerator(cpu=True)
    if action == "save":
        accelerator.save_state(folder)  # the states of the random generators
    plugin = peer.FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = tools.DistributedType.FSDP, plugin
    getattr(tools, f"{action}_fsdp_model")(plugin, accelerator, model, folder)
    getattr(tools, f"{action}_fsdp_optimizer")(plugin, accelerator, optimizer, model, folder)
    state = importlib.import_module("accelerate.state")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    state.GradientState._reset_state()


def of_ours(action, folder, model, optimizer):
    ours = importlib.import_module("accel")
    plugin = ours.FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = ours.Accelerator(cpu=True, fsdp_plugin=plugin)
    model, optimizer = accelerator.prepare(model, optimizer)
    if action == "save":
        accelerator.save_state(folder)
    else:
        accelerator.load_state(folder, strict=Path(folder, "accel_checkpoint.json").exists())
    importlib.import_module("accel_state.runtime").reset_runtime(keep_process_group=True)


def of_torch(action, folder, model, optimizer):
    model_state, optimizer_state = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
    parts = {"pytorch_model_fsdp_0": {"model": model_state}, "optimizer_0": {"optimizer": optimizer_state}}
    if action == "save" and torch.distributed.get_rank() == 0:
        for states in Path(folder).with_name("accelerate-accel").glob("random_states_*.pkl"):
            shutil.copy(states, folder)
    for name, state in parts.items():
        (dcp.save if action == "save" else dcp.load)(state, checkpoint_id=f"{folder}/{name}")
    if action == "load":
        set_model_state_dict(model, model_state)
        set_optimizer_state_dict(model, optimizer, optimizer_state)


def main():
    [folder] = sys.argv[1:]
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo")
    packages = {"accelerate": of_peer, "accel": of_ours, "torch": of_torch}
    for saver, loader in (
        ("accelerate", "accel"),
        ("accel", "accelerate"),
        ("torch", "accel"),
        ("accel", "torch"),
    ):
        for package, action, seed in ((saver, "save", 1), (loader, "load", 2)):
            model, optimizer = make_run(seed)
            place = Path(folder, f"{saver}-{loader}")
            place.mkdir(exist_ok=True)
            packages[package](action, str(place), model, optimizer)
            state = {"model": plain(model.state_dict()), "optimizer": plain(optimizer.state_dict())}
            Path(folder, f"{saver}-{loader}-{action}.{rank}").write_text(json.dumps(state))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
