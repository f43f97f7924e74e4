"""Save over and over, to be killed at any moment.

The parent imports everything once and forks the ranks of each run: it reads one JSON object of options per line,
answers with the process ids, and again when all have ended. All weights have the value of the number of the save,
which is written to `PROJECT/asked` before each save and to `PROJECT/done` after it.
"""

import json
import os
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch import nn

from accel import Accelerator, ProjectConfiguration
from accel_state.runtime import reset_runtime


def save_over_and_over(*, project, limit, behind, size=200):
    project = Path(project)
    accelerator = Accelerator(
        cpu=True,
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


def fork_rank(rank, num_processes, port, options):
    pid = os.fork()
    if pid:
        return pid
    if num_processes > 1:
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": num_processes,
            "LOCAL_WORLD_SIZE": num_processes,
        }
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    try:
        save_over_and_over(**options)
    except BaseException:  # noqa: BLE001 (a forked child ends here, whatever happens)
        traceback.print_exc()
    finally:
        os._exit(1)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def warm_up():
    """Import what the first save imports, once for all forks."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(Path(folder) / "checkpoint")
        accelerator.load_state(Path(folder) / "checkpoint")
    reset_runtime()


def main():
    warm_up()
    for line in sys.stdin:
        options = json.loads(line)
        num_processes, port = options.pop("num_processes"), free_port()
        pids = [fork_rank(rank, num_processes, port, options) for rank in range(num_processes)]
        print(json.dumps(pids), flush=True)
        for pid in pids:
            os.waitpid(pid, 0)
        print("ended", flush=True)


if __name__ == "__main__":
    main()
