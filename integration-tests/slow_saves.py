"""Save although one rank is slower than the timeout of the process group, or its connections to the store have broken.

Each rank gets the options of `save` as JSON. `PROJECT/outcome-RANK` has afterwards what went wrong, and is empty if
nothing did.
"""

import contextlib
import os
import socket
import stat
import time
from datetime import timedelta
from pathlib import Path

import torch
from preloaded import run_with_options
from torch import nn

from accel import Accelerator, InitProcessGroupKwargs
from accel_checkpoint.listing import check_loadable
from accel_state.errors import AccelError

TIMEOUT_S = 4.0


def save(*, project, how, victim):
    timeout = InitProcessGroupKwargs(timeout=timedelta(seconds=TIMEOUT_S))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[timeout])
    model, project, rank = accelerator.prepare(nn.Linear(4, 4)), Path(project), accelerator.process_index
    text = ""
    try:
        with torch.no_grad():
            model(torch.ones(1, 4))
        if how == "slow":
            hook = accelerator.register_save_state_pre_hook(
                lambda *_: rank == victim and time.sleep(TIMEOUT_S + 1.5)
            )
            accelerator.save_state(project / "slow")
            hook.remove()
        else:
            accelerator.save_state(project / "before")
            if rank == victim:
                assert cut(int(os.environ["MASTER_PORT"])) >= 2, "no connection was found"
        for number in range(3):
            accelerator.save_state(project / f"{number}", blocking=number != 1)
        accelerator.load_state(project / "2", verify=True)
        for folder in project.glob("[0-2]"):
            check_loadable(folder, verify=True)
        accelerator.wait_for_everyone()
    except AccelError as error:
        text = f"{type(error).__name__}: {error}"
    (project / f"outcome-{rank}").write_text(text)


def cut(port):
    """Break the connections of this process from or to a port, and return how many."""
    number = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptor = os.dup(int(name))
            if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.close(descriptor)
                continue
            with socket.socket(fileno=descriptor) as one:
                is_of_net = one.family in (socket.AF_INET, socket.AF_INET6)
                if is_of_net and port in (one.getpeername()[1], one.getsockname()[1]):
                    one.shutdown(socket.SHUT_RDWR)
                    number += 1
    return number


if __name__ == "__main__":
    run_with_options(save)
