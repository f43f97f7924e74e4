"""Stages never wait in a circle, even if a message is sent only when it is received, and keep no message for long."""

import queue
import threading
import weakref
from collections import defaultdict

import pytest
import torch
import torch.distributed as dist
from torch import nn

from accel import Accelerator, ParallelismConfig
from accel_backends.pipeline.messages import ForwardMessages, KnownHandovers, num_lanes
from accel_backends.pipeline.schedule_run import PipelinePlace, ScheduleRun
from accel_backends.pipeline.schedules import SCHEDULES, ScheduleArgs
from accel_backends.pipeline.stages import StagedModel
from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.stages import stages_of
from accel_state import PipelineParallelConfig
from accel_state.errors import DistributedOperationException
from accel_state.runtime import reset_runtime

RUNS = [
    # schedule, stages of each rank
    ("gpipe", 1),
    ("1f1b", 1),
    ("zero_bubble", 1),
    ("zero_bubble", 2),
    ("zero_bubble", 3),
    ("interleaved_1f1b", 2),
    ("interleaved_1f1b", 3),
]


def messages_of_a_step(num_ranks, schedule, stages_per_rank, num_micro_batches):
    """Return what this rank sent and received, in order, and how many of the tensors it sent were alive at once."""
    reset_runtime(keep_process_group=True)
    handler = PipelineParallelConfig(schedule, num_micro_batches, stages_per_rank=stages_per_rank)
    config = ParallelismConfig(pp_size=num_ranks, pp_handler=handler)
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(num_ranks * stages_per_rank)]
    model = accelerator.prepare(nn.Sequential(*layers))
    messages, sent, num_alive = [], [], [0]
    isend, recv = dist.isend, dist.recv

    def note(kind, group, peer):
        messages.append((kind, (group or dist.group.WORLD).group_name, peer))

    def noted_isend(tensor, peer, group=None):
        note("send", group, peer)
        sent.append(weakref.ref(tensor))
        num_alive.append(sum(one() is not None for one in sent))
        return isend(tensor, peer, group=group)

    def noted_recv(tensor, peer, group=None):
        note("receive", group, peer)
        return recv(tensor, peer, group=group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "isend", noted_isend)
        patch.setattr(dist, "recv", noted_recv)
        rows = torch.linspace(-1, 1, 4 * num_micro_batches).reshape(num_micro_batches, 4)
        accelerator.forward_backward(model, rows, lambda model, rows: model(rows).square().mean())
    return messages, max(num_alive)


def messages_of_schedules(num_ranks):
    return [
        messages_of_a_step(num_ranks, schedule, number, 2 * num_ranks * number)[0]
        for schedule, number in RUNS
    ]


def unfinished(messages, *, has_stream_per_group):
    """Return what ranks are left with if each message waits for both sides, as in NCCL.

    A rank continues after it has started to send, but not before it has received. Messages of one stream
    are in order: there is one for each group and peer, or, of a group that was made eagerly, for each group.
    """

    def stream(message):
        _, group, peer = message
        return group if has_stream_per_group else (group, peer)

    left = [list(own) for own in messages]

    def heads(rank):
        """Yield the places of messages that nothing before them keeps back."""
        busy = set()
        for place, message in enumerate(left[rank]):
            if stream(message) not in busy:
                yield place, message
            if message[0] == "receive":
                return
            busy.add(stream(message))

    def deliver_to(receiver):
        for other, (kind, group, sender) in heads(receiver):
            for place, message in heads(sender) if kind == "receive" else ():
                if message == ("send", group, receiver):
                    del left[sender][place], left[receiver][other]
                    return True
        return False

    while any(deliver_to(receiver) for receiver in range(len(left))):
        pass
    return [message for own in left for message in own]


def check_order(messages, settings):
    assert all(messages)
    for has_stream_per_group in (False, True):
        left = unfinished(messages, has_stream_per_group=has_stream_per_group)
        assert not left, (settings, has_stream_per_group)


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_ranks_do_not_wait_for_each_other_in_a_circle(world, num_ranks):
    each = world(num_ranks).run(messages_of_schedules, num_ranks)
    for settings, messages in zip(RUNS, zip(*each, strict=True), strict=True):
        check_order(messages, settings)


class Wires:
    """Carries messages between threads, each of which is a rank, and notes them."""

    def __init__(self, num_ranks):
        self.messages = [[] for _ in range(num_ranks)]
        self.thread = threading.local()
        self._sent = defaultdict(queue.SimpleQueue)

    def isend(self, tensor, peer, group=None):
        self.messages[self.thread.rank].append(("send", group, peer))
        self._sent[self.thread.rank, peer, group].put(tensor.clone())

    def recv(self, tensor, peer, group=None):
        self.messages[self.thread.rank].append(("receive", group, peer))
        tensor.copy_(self._sent[peer, self.thread.rank, group].get(timeout=60))


def run_rank(wires, rank, num_ranks, schedule, stages_per_rank, num_micro_batches):
    """Run the schedule of one rank in this thread."""
    wires.thread.rank = rank
    device, num_stages = torch.device("cpu"), num_ranks * stages_per_rank
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(num_stages)))
    starts = [str(number) for number in range(1, num_stages)]
    stages = stages_of(model, resolve_plan(model), num_stages, split_points=starts)
    staged = StagedModel(model, stages, device=device, place=rank, num_ranks=num_ranks)
    lanes = range(num_lanes(num_ranks, stages_per_rank))
    place = PipelinePlace(
        tuple(range(num_ranks)),
        rank,
        forward_groups=[f"forward {lane}" for lane in lanes],
        backward_groups=[f"backward {lane}" for lane in lanes],
    )

    def actions(index):
        return SCHEDULES[schedule](ScheduleArgs(index, num_ranks, stages_per_rank, num_micro_batches))

    ScheduleRun(
        staged,
        place,
        calls=[lambda: model(torch.ones(1, 2))] * num_micro_batches,
        messages=ForwardMessages(staged, KnownHandovers(), ["rows"] * num_micro_batches, device),
        device=device,
        root=None,
        take=lambda result: result.sum(),
        scaled=lambda loss, number: loss,
        schedule_of=actions,
    ).run(actions(rank))


@pytest.mark.parametrize("num_ranks", range(2, 9))
@pytest.mark.parametrize(("schedule", "stages_per_rank"), RUNS)
def test_up_to_eight_ranks_do_not_wait_for_each_other_in_a_circle(
    monkeypatch, schedule, stages_per_rank, num_ranks
):
    wires = Wires(num_ranks)
    monkeypatch.setattr(dist, "isend", wires.isend)
    monkeypatch.setattr(dist, "recv", wires.recv)
    settings = (num_ranks, schedule, stages_per_rank, num_ranks + 2)
    ranks = [threading.Thread(target=run_rank, args=(wires, rank, *settings)) for rank in range(num_ranks)]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    num_messages = 2 * (num_ranks * stages_per_rank - 1) * (num_ranks + 2)
    num_shapes = num_ranks * stages_per_rank - 1
    assert sum(kind == "send" for own in wires.messages for kind, *_ in own) == num_messages + num_shapes
    check_order(wires.messages, settings)


@pytest.mark.parametrize(
    ("schedule", "stages_per_rank"), [("1f1b", 1), ("zero_bubble", 1), ("interleaved_1f1b", 2)]
)
def test_a_rank_keeps_what_it_sent_for_as_long_as_it_may_be_on_its_way(world, schedule, stages_per_rank):
    for messages, num_alive in world(3).run(messages_of_a_step, 3, schedule, stages_per_rank, 24):
        num_sent = sum(kind == "send" for kind, *_ in messages)
        assert num_sent >= 24
        assert num_alive <= 7 * stages_per_rank


class Saved:
    """What a backward pass needs."""


class Remembering(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, saved):
        ctx.saved = saved
        return rows.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class RunsOutOfMemory(nn.Linear):
    """Runs out of memory in the third micro-batch; no other module does."""

    def __init__(self):
        super().__init__(4, 4)
        self.saved = []

    def forward(self, rows):
        saved = Saved()
        self.saved.append(weakref.ref(saved))
        rows = Remembering.apply(super().forward(rows), saved)
        if len(self.saved) == 3:
            raise MemoryError("no memory")
        return rows

    def num_saved(self):
        return sum(one() is not None for one in self.saved)


def activations_after_an_error(schedule):
    """Return how many activations are kept when this rank sends its last message and when it raises, and the error."""
    reset_runtime(keep_process_group=True)
    config = ParallelismConfig(pp_size=2, pp_handler=PipelineParallelConfig(schedule, 6))
    accelerator = Accelerator(cpu=True, parallelism_config=config)
    failing = RunsOutOfMemory()
    model = accelerator.prepare(nn.Sequential(failing, nn.Linear(4, 4)))
    num_saved, isend = [], dist.isend

    def noted_isend(tensor, peer, group=None):
        num_saved.append(failing.num_saved())
        return isend(tensor, peer, group=group)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "isend", noted_isend)
        try:
            accelerator.forward_backward(model, torch.ones(6, 4), lambda model, rows: model(rows).sum())
        except (MemoryError, DistributedOperationException) as error:
            return num_saved, failing.num_saved(), str(error)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_a_stage_without_memory_frees_its_activations_before_it_continues_sending(world, schedule):
    (num_saved, at_the_end, error), (_, _, error_of_other) = world(2).run(
        activations_after_an_error, schedule
    )
    assert len(num_saved) == 7  # six micro-batches, the first with its shapes
    assert max(num_saved[:4]) > 0
    assert num_saved[4:] == [0, 0, 0]
    assert at_the_end == 0
    assert error == "no memory"
    assert "Process 0 failed in its stage of the model. MemoryError" in error_of_other
