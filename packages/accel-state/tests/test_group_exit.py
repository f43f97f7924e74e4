"""No script's end aborts or hangs, and no group is ended but by who set it up."""

import datetime
import os
import signal
import time
import warnings
from contextlib import contextmanager
from functools import partial

import pytest
import torch.distributed as dist

from accel_state import group_exit
from accel_state.errors import StateError
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime
from tools.harness.fork_server import COMPLETE_EXIT
from tools.harness.scripts import start_ranks

# From Python 3.12 on no thread can be started while the interpreter ends.
HEADER = """
import datetime, sys, threading, time
def end_without_new_threads(shutdown=threading._shutdown):
    def refuse(thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")
    threading.Thread.start = refuse
    shutdown()
threading._shutdown = end_without_new_threads
import torch, torch.distributed as dist
from accel_state.partial_state import PartialState
state = PartialState(cpu=True, timeout=datetime.timedelta(seconds=TIMEOUT_S))
rank = state.process_index
dist.all_reduce(torch.ones(1))
print("ready", flush=True)
"""

# Name: what follows the header, the exit codes of both ranks, words of each rank's error output.
ENDINGS = {
    "falls off the end": ("", [0, 0], ["", ""]),
    "leaves a second group": (
        "dist.all_reduce(torch.ones(1), group=dist.new_group([0, 1]))",
        [0, 0],
        ["", ""],
    ),
    "leaves a callback running that holds the group": (
        """
def look(future, group=dist.group.WORLD):
    time.sleep(1)
dist.all_reduce(torch.ones(1), async_op=True).get_future().then(look)
""",
        [0, 0],
        ["", ""],
    ),
    "leaves garbage that holds the group": (
        """
class Knot: pass
knot = Knot()
knot.itself, knot.group = knot, dist.group.WORLD
del knot
""",
        [0, 0],
        ["", ""],
    ),
    "leaves a variable that holds the group": (
        """
from accel_state import group_exit
group_exit._CALLBACK_WAIT_S = 600.0
kept = dist.group.WORLD
""",
        [0, 0],
        ["", ""],
    ),
    "leaves a thread that `threading` does not know": (
        """
import _thread
from accel_state import group_exit
group_exit._CALLBACK_WAIT_S = 600.0
_thread.start_new_thread(time.sleep, (600,))
_thread.start_new_thread(lambda: time.sleep(600), ())
""",
        [0, 0],
        ["", ""],
    ),
    "destroys the group itself": ("state.destroy_process_group()", [0, 0], ["", ""]),
    "destroys the group through torch": ("dist.destroy_process_group()", [0, 0], ["", ""]),
    "calls sys.exit": ("sys.exit(3)", [3, 3], ["", ""]),
    "raises on both ranks": ("raise ValueError('here')", [1, 1], ["ValueError: here"] * 2),
    "raises while the other is in a barrier": (
        "if rank == 1: raise ValueError('here')\nstate.wait_for_everyone()",
        [1, 1],
        ["RuntimeError", "ValueError: here"],
    ),
    "raises with a collective under way that nobody joins": (
        """
if rank == 1:
    work = dist.all_reduce(torch.ones(9), async_op=True)
    raise ValueError('here')
state.wait_for_everyone()
""",
        [1, 1],
        ["RuntimeError", "ValueError: here"],
    ),
}


@contextmanager
def started_pair(code, *, timeout_s=60):
    """Start two ranks that meet over TCP, as mpirun would: without an agent that watches them."""
    code = HEADER.replace("TIMEOUT_S", str(timeout_s)) + code
    with start_ranks(["-c", code], 2, env=COMPLETE_EXIT) as pair:
        yield pair


def finish(pair, *, timeout_s=120):
    """Return what each rank wrote to standard error, and its exit code."""
    exit_codes = [rank.process.wait(timeout_s) for rank in pair]
    return [(rank.stderr, exit_code) for rank, exit_code in zip(pair, exit_codes, strict=True)]


def wait_until_ready(pair):
    for rank in pair:
        rank.wait_for_output("ready")


def end_of(folder, *, ending):
    """Return how both ranks end; none may wait for the group's timeout, which is longer than this waits."""
    with started_pair(ENDINGS[ending][0], timeout_s=600) as pair:
        wait_until_ready(pair)
        return ending, finish(pair)


@pytest.mark.parametrize(
    "outcome", [partial(end_of, ending=ending) for ending in ENDINGS], ids=list(ENDINGS), indirect=True
)
def test_script_ends_with_its_own_exit_code_whatever_its_last_act(outcome):
    ending, ended = outcome
    _, exit_codes, words = ENDINGS[ending]
    assert [exit_code for _, exit_code in ended] == exit_codes, ended
    for (errors, _), word in zip(ended, words, strict=True):
        assert word in errors
        assert "terminate called" not in errors
        assert "interpreter shutdown" not in errors


def interrupted(folder, *, waiting):
    with started_pair(waiting) as pair:
        wait_until_ready(pair)
        time.sleep(
            0.3
        )  # until the second rank is inside the barrier; earlier would be right too, but test less
        for rank in pair:
            rank.process.send_signal(signal.SIGINT)
        return finish(pair)


@pytest.mark.parametrize(
    "outcome",
    [
        partial(interrupted, waiting="while True: sum(range(1000))"),
        partial(interrupted, waiting="rank or time.sleep(60); state.wait_for_everyone()"),
    ],
    ids=["both compute", "one waits for the other"],
    indirect=True,
)
def test_interrupt_ends_both_ranks_as_interrupted(outcome):
    ended = outcome
    assert [exit_code for _, exit_code in ended] == [-signal.SIGINT] * 2, ended
    assert all("KeyboardInterrupt" in errors and "terminate called" not in errors for errors, _ in ended)


def waits_alone(folder):
    code = "if rank == 0: state.wait_for_everyone()\nelse: time.sleep(5)"
    with started_pair(code, timeout_s=2) as pair:
        return finish(pair)


@pytest.mark.parametrize("outcome", [waits_alone], indirect=True)
def test_rank_that_no_other_joins_aborts_after_the_groups_timeout(outcome):
    (errors, exit_code), (_, other_exit_code) = outcome
    assert (exit_code, other_exit_code) == (1, 0)
    assert "Timed out waiting 2000ms" in errors


def test_forked_child_does_not_end_its_parents_group(world):
    assert world(2).run(fork_and_exit) == [0, 0]


def fork_and_exit():
    pid = os.fork()
    if pid == 0:
        group_exit._end_at_exit()
        os._exit(0 if dist.is_initialized() else 1)
    status = os.waitpid(pid, 0)[1]
    PartialState().wait_for_everyone()
    return status


def reset_and_look(keep):
    group = dist.group.WORLD
    reset_runtime(keep_process_group=keep)
    return dist.is_initialized() and dist.group.WORLD is group


def test_reset_keeps_or_ends_the_group_as_asked(world):
    assert world(2).run(reset_and_look, True) == [True, True]
    assert world(2).run(reset_and_look, False) == [False, False]


def use_own_group(path):
    """Build the state on a group that the script set up itself."""
    rank = int(os.environ["RANK"])
    dist.destroy_process_group()
    reset_runtime(keep_process_group=True)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    with warnings.catch_warnings(record=True) as told:
        state = PartialState(cpu=True, timeout=datetime.timedelta(seconds=9))
    assert ["`timeout` has no effect" in str(one.message) for one in told] == [True][rank:]
    seen = (state.process_index, state.num_processes, state.backend, group_exit.is_group_owned())
    reset_runtime()
    group_exit._end_at_exit()
    survived = dist.is_initialized()
    with pytest.raises(
        StateError, match="`backend` requests `mpi`, but the process group already uses `gloo`"
    ):
        PartialState(cpu=True, backend="mpi")
    dist.destroy_process_group()
    return seen, survived


def test_group_of_the_user_is_used_and_never_destroyed(world, tmp_path):
    assert world(2).run(use_own_group, tmp_path / "meet") == [
        ((0, 2, "gloo", False), True),
        ((1, 2, "gloo", False), True),
    ]
