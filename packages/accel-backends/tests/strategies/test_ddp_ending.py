"""A model that lives until the end of the script does not keep the group's threads alive beyond it."""

import sys
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_backends.strategies.ddp import release_all, release_at_exit
from accel_state.versions import is_torch_version
from tools.harness.fork_server import COMPLETE_EXIT
from tools.harness.scripts import run_script


def released():
    model = DistributedDataParallel(nn.Linear(1, 1))
    model(torch.ones(1, 1)).sum().backward()
    release_at_exit(model)
    release_all()
    with torch.no_grad():
        inside = model.module(torch.ones(1, 1)).shape
    return [hasattr(model, name) for name in ("reducer", "logger", "process_group")], tuple(inside)


def test_released_models_hold_the_group_no_longer(world):
    assert world(2).run(released) == [([False] * 3, (1, 1))] * 2


SCRIPT = """
import atexit, os, sys
from pathlib import Path

def gloo_threads():
    names = [Path(f"/proc/self/task/{task}/comm").read_text() for task in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)

def say(line):
    os.write(1, f"{line}\\n".encode())  # not through `sys.stdout`, which may be closed by then

atexit.register(lambda: say(f"left {gloo_threads()}"))  # registered first: runs last

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from accel_state import PartialState
from accel_backends.strategies.ddp import release_at_exit

state = PartialState(cpu=True)
model = DistributedDataParallel(nn.Linear(1, 1))
release_at_exit(model)
model(torch.ones(1, 1)).sum().backward()
say(f"trained {gloo_threads() > 0}")
if "end" in sys.argv:
    state.destroy_process_group()
"""


def trained(folder, *, how):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return run_script(script, how, num_processes=2, env=COMPLETE_EXIT, timeout_s=100)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads by /proc")
@pytest.mark.skipif(
    is_torch_version("<", "2.13"), reason="needs torch >= 2.13, where the threads of gloo have names"
)
@pytest.mark.parametrize(
    "outcome",
    [partial(trained, how=how) for how in ("falls off", "end")],
    ids=["falls off", "end"],
    indirect=True,
)
def test_no_thread_of_the_group_outlives_the_script(outcome):
    done = outcome
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained True\nleft 0\n" * 2
