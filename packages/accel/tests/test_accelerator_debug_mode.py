"""`accel launch --debug`: ranks that would wait for one another forever are named instead."""

from __future__ import annotations

import re
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accel import Accelerator
from accel_ops import debug_deadline
from accel_state import CheckpointError, DistributedOperationException, PartialState, current_runtime
from tools.harness.scripts import start_ranks, wait_for_ranks

pytestmark = pytest.mark.usefixtures("fresh_state")


class Run:
    """A prepared run in debug mode."""

    def __init__(self, folder="", **arguments):
        self.rank = PartialState(cpu=True).process_index
        current_runtime().debug = True
        self.accelerator = Accelerator(cpu=True, **arguments)
        self.folder = folder
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=True)
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)

    def step(self):
        self.accelerator.backward(self.model(torch.ones(1, 2)).sum())
        self.optimizer.step()
        self.optimizer.zero_grad()


def barrier_that_one_skips(run):
    if run.rank != 1:
        run.accelerator.wait_for_everyone()


def barrier_against_gather(run):
    run.accelerator.gather(torch.ones(1)) if run.rank else run.accelerator.wait_for_everyone()


def barrier_against_backward(run):
    run.accelerator.wait_for_everyone() if run.rank == 1 else run.step()


def break_on_one_rank(run):
    for number in range(4):
        if run.rank == 1 and number == 2:
            break
        run.step()
    run.accelerator.wait_for_everyone()


def backward_that_one_skips(run):
    for number in range(3):
        if run.rank != 2 or number != 1:
            run.step()
    run.accelerator.wait_for_everyone()


def return_of_one_rank(run):
    for number in range(4):
        if run.rank == 1 and number == 2:
            return
        run.step()


def gather_that_one_skips(run):
    if run.rank:
        run.accelerator.gather(torch.ones(1))


def main_process_first_on_one(run):
    if run.rank == 1:
        with run.accelerator.main_process_first():
            pass


def local_main_process_first_against_load(run):
    if run.rank == 0:
        run.accelerator.load_state(run.folder)
    else:
        with run.accelerator.local_main_process_first():
            pass


def second_prepare_on_one_rank(run):
    if run.rank == 0:
        run.accelerator.prepare(nn.Linear(1, 1))


def save_on_one_rank(run):
    if run.rank == 1:
        run.accelerator.save_state(run.folder)


DIFFERENT = "the processes called different operations"
CASES = {
    barrier_that_one_skips: (3, 3, [r"process 1 did not reach `wait_for_everyone` within 3 seconds"]),
    barrier_against_gather: (2, 20, [DIFFERENT, "0: `wait_for_everyone` at", "1: `accel_ops.gather` at"]),
    barrier_against_backward: (3, 20, [DIFFERENT, "0: `backward` at", "1: `wait_for_everyone` at"]),
    break_on_one_rank: (2, 20, [DIFFERENT, "0: `backward` at", "1: `wait_for_everyone` at"]),
    backward_that_one_skips: (3, 20, [DIFFERENT, "1: `backward` at", "2: `wait_for_everyone` at"]),
    return_of_one_rank: (3, 3, ["process 1 did not reach `backward`", "1 was last seen in `backward` at"]),
    gather_that_one_skips: (2, 3, ["process 0 did not reach `accel_ops.gather`"]),
    main_process_first_on_one: (3, 3, ["process 0, 2 did not reach `main_process_first`"]),
    local_main_process_first_against_load: (
        2,
        20,
        [DIFFERENT, "0: `load_state` at", "1: `local_main_process_first` at"],
    ),
    second_prepare_on_one_rank: (3, 3, ["process 1, 2 did not reach `prepare`"]),
    save_on_one_rank: (3, 1, ["Rank 0 did not reach `save_state or save_model-[0-9]+` within 1 s"]),
}


def message_of(case, deadline_s, folder):
    run = Run(folder)
    with debug_deadline(deadline_s):
        try:
            case(run)
        except (DistributedOperationException, CheckpointError) as error:
            return str(error)
    return ""


@pytest.mark.parametrize("case", CASES)
def test_a_hang_is_named(world, tmp_path, case):
    num_ranks, deadline_s, expected = CASES[case]
    messages = world(num_ranks).run(message_of, case, deadline_s, str(tmp_path / "checkpoint"))
    named = [message for message in messages if message]
    assert named
    for message in named:
        if "had stopped waiting" not in message:
            assert all(re.search(part, message) for part in expected), message
        assert __file__ in message or "save_state" in message


def save_together_after_one_rank_alone(folder):
    run, message = Run(folder), ""
    with debug_deadline(1):
        try:
            save_on_one_rank(run)
        except CheckpointError as error:
            message = str(error)
    torch.distributed.barrier()
    with debug_deadline(20):
        run.accelerator.save_state(run.folder)
    return bool(message)


def test_a_rank_whose_save_failed_alone_takes_part_in_the_next_one(world, tmp_path):
    folder = str(tmp_path / "checkpoint")
    assert world(3).run(save_together_after_one_rank_alone, folder) == [False, True, False]
    assert (tmp_path / "checkpoint").is_dir()


ENDED = """
import torch
from accel import Accelerator
from accel_ops import debug_deadline

accelerator = Accelerator(cpu=True)
model, _ = accelerator.prepare(model := torch.nn.Linear(2, 1), torch.optim.SGD(model.parameters(), fused=True))
with debug_deadline(2):
    for step in range(3):
        if step == 2 and accelerator.process_index == 1:
            raise SystemExit(0)
        accelerator.backward(model(torch.ones(1, 2)).sum())
"""


def test_a_rank_that_has_ended_is_named():
    with start_ranks(["-c", ENDED], 3, env={"ACCELERATE_DEBUG_MODE": "true"}) as ranks:
        assert wait_for_ranks(ranks) == 1
        assert [rank.process.poll() for rank in ranks] == [1, 0, 1]
        assert "process 1 did not reach `backward`" in ranks[0].stderr


def everything_that_does_not_differ(folder):
    """Also what single ranks may do, and what one does while the others wait."""
    run = Run(folder, gradient_accumulation_steps=2)
    accelerator, shown = run.accelerator, []
    for _ in range(3):
        with accelerator.accumulate(run.model):
            run.step()
    with accelerator.no_sync(run.model):
        if run.rank == 0:
            accelerator.backward(run.model(torch.ones(1, 2)).sum())
    with accelerator.main_process_first():
        with debug_deadline(0.1):
            shown.append(run.rank)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if run.rank == 0:
            accelerator.save_state(folder)
    accelerator.wait_for_everyone()
    accelerator.load_state(folder)
    with accelerator.join_uneven_inputs([run.model]):
        for _ in range(run.rank + 1):
            with accelerator.accumulate(run.model):
                run.step()
    dist.barrier()
    return accelerator.gather(torch.tensor([run.rank])).tolist()


def test_calls_that_fit_are_not_disturbed(world, tmp_path):
    # Of another name than those of other tests: ranks that come to a save of rank 0 alone later take it for theirs.
    assert world(3).run(everything_that_does_not_differ, str(tmp_path / "of rank 0 alone")) == [[0, 1, 2]] * 3
