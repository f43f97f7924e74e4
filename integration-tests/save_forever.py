"""Save over and over, to be killed at any moment.

Each rank gets the options of `save_over_and_over` as JSON. All weights have the value of the number of the save,
which is written to `PROJECT/asked` before each save and to `PROJECT/done` after it.
"""

import json
import sys
from pathlib import Path

import torch
from torch import nn

from accel import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin, ProjectConfiguration
from accel_backends.strategies.deepspeed.gathered import GatheredParameters


def save_over_and_over(*, project, limit, behind, shards=None, stage=None, size=200):
    project = Path(project)
    accelerator = Accelerator(
        cpu=True,
        deepspeed_plugin=None if stage is None else deepspeed_plugin(stage),
        fsdp_plugin=shards and FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=shards),
        project_config=ProjectConfiguration(
            project_dir=str(project), automatic_checkpoint_naming=True, total_limit=limit
        ),
    )
    model = nn.Linear(size, size)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    if (project / "checkpoints").is_dir():
        accelerator.load_state()
    while True:
        number = accelerator.save_iteration
        fill(model, number)
        if accelerator.is_main_process:
            note(project / "asked", number)
        if behind:
            handle = accelerator.save_state(blocking=False)
            fill(model, -1)  # must not reach the disk
            handle.wait()
        else:
            accelerator.save_state()
        if accelerator.is_main_process:
            note(project / "done", number)


def fill(model, number):
    if hasattr(model, "zero_optimization"):
        fill_engine(model, number)
        return
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)


def fill_engine(engine, number):
    from deepspeed.utils import safe_set_full_fp32_param

    with torch.no_grad():
        for parameter in engine.module.parameters():
            with GatheredParameters([parameter], modifier_rank=0):
                parameter.fill_(number)
                whole = torch.full_like(parameter, number)
            safe_set_full_fp32_param(parameter, whole)


def deepspeed_plugin(stage):
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    return DeepSpeedPlugin(hf_ds_config=config)


def note(path, number):
    hidden = path.with_suffix(".new")
    hidden.write_text(str(number))
    hidden.replace(path)


if __name__ == "__main__":
    save_over_and_over(**json.loads(sys.argv[1]))
