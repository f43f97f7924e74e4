"""Save over and over, to be killed at any moment.

`forking.Runs` asks for the runs. All weights have the value of the number of the save,
which is written to `PROJECT/asked` before each save and to `PROJECT/done` after it.
"""

from pathlib import Path

import torch
from forking import serve
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin, ProjectConfiguration


def save_over_and_over(*, project, limit, behind, shards=None, size=200):
    project = Path(project)
    accelerator = Accelerator(
        cpu=True,
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
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)


def note(path, number):
    hidden = path.with_suffix(".new")
    hidden.write_text(str(number))
    hidden.replace(path)


if __name__ == "__main__":
    serve(save_over_and_over)
