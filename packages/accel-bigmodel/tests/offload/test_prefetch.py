"""The weights that run next: prefetched in the order of the last forward pass, within a forward pass only."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from accel_bigmodel import cpu_offload, transfers
from accel_bigmodel.offload.placeholders import weight_of
from accel_bigmodel.offload.weight import OffloadedWeight
from accel_bigmodel.transfers import Transfer


class Watched(Mapping):
    """Weights that log each read."""

    def __init__(self, weights):
        self.weights, self.log = dict(weights), []

    def __getitem__(self, name):
        self.log.append(name)
        return self.weights[name]

    def __iter__(self):
        return iter(self.weights)

    def __len__(self):
        return len(self.weights)


class Layers(nn.Module):
    """Layers that run in any order."""

    def __init__(self, sizes):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, 4, bias=False) for size in sizes)
        self.after = lambda number: None

    def forward(self, x, order):
        for number in order:
            x = self.layers[number](x.repeat(1, self.layers[number].in_features // 4))
            self.after(number)
        return x


def watched_model(sizes, **options) -> tuple[Layers, Watched]:
    torch.manual_seed(0)
    model = Layers(sizes)
    weights = Watched(model.state_dict())
    cpu_offload(model, "cpu", state_dict=weights, **options)
    return model, weights


def offloaded_weights(model: nn.Module) -> list[OffloadedWeight]:
    return [weight_of(parameter) for parameter in model.parameters()]


X = torch.ones(1, 4)


@torch.no_grad()
def run(model, order):
    return model(X, order)


def wanted(weights, order):
    x = X
    for number in order:
        weight = weights.weights[f"layers.{number}.weight"]
        x = x.repeat(1, weight.shape[1] // 4) @ weight.T
    return x


# Values that are used where they are stored are not copied ahead.
@pytest.mark.parametrize("execution_memory", ["second memory"], indirect=True)
def test_the_second_forward_reads_the_next_weights_while_one_computes(execution_memory):
    model, weights = watched_model([4, 4, 4])
    first = run(model, [0, 1, 2])
    read = {}
    model.after = lambda number: read.update({number: weights.log[:]})
    weights.log.clear()
    assert torch.equal(run(model, [0, 1, 2]), first)
    names = [f"layers.{number}.weight" for number in range(3)]
    assert names[1] in read[0]
    assert weights.log == names


def test_nothing_is_prefetched_between_forwards(execution_memory):
    model, _ = watched_model([4, 4, 4])
    for _ in range(3):
        run(model, [0, 1, 2])
        assert not any(weight.is_live or weight.is_fetched for weight in offloaded_weights(model))


@pytest.mark.usefixtures("execution_memory")
def test_a_varying_order_changes_no_result():
    model, weights = watched_model([4, 8, 4, 4])
    for order in ([0, 1, 2, 3], [3, 1, 0, 2], [0, 1, 2, 3], [2, 2, 0, 1], [1, 3, 1, 3, 0]):
        assert torch.equal(run(model, order), wanted(weights, order))


@pytest.mark.usefixtures("execution_memory")
@pytest.mark.parametrize("sizes", [[4] * 5, [4, 4, 16, 4, 4, 4, 4, 16, 16, 4]])
def test_blocks_in_memory_take_no_more_than_twice_the_largest(sizes):
    model, _ = watched_model(sizes)

    def check(number):
        fetched = [p for p in model.parameters() if weight_of(p).is_live or weight_of(p).is_fetched]
        assert sum(parameter.numel() for parameter in fetched) <= 2 * 4 * max(sizes)

    model.after = check
    for _ in range(3):
        run(model, range(len(sizes)))


@pytest.mark.usefixtures("execution_memory")
def test_an_error_of_a_prefetch_is_raised_where_the_weight_is_used():
    model, weights = watched_model([4, 4])
    run(model, [0, 1])
    run(model, [0, 1])
    del weights.weights["layers.1.weight"]
    with pytest.raises(KeyError, match=r"1\.weight"):
        run(model, [0, 1])


@pytest.mark.parametrize("execution_memory", ["second memory"], indirect=True)
def test_prefetching_can_be_turned_off(execution_memory):
    model, weights = watched_model([4, 4], prefetch=False)
    read = {}
    model.after = lambda number: read.update({number: weights.log[:]})
    for _ in range(3):
        weights.log.clear()
        run(model, [0, 1])
        assert read[0] == ["layers.0.weight"]


class Event:
    """The end of the work that a stream was given, which the test or a wait completes."""

    def __init__(self, device, work=lambda: None):
        self.device, self.work, self.is_complete = device, work, False

    def query(self):
        return self.is_complete

    def synchronize(self):
        self.device.host_waits.append(self)
        self.complete()

    def complete(self):
        if not self.is_complete:
            self.is_complete = True
            self.work()


class Stream:
    def __init__(self, device):
        self.device, self.waits = device, []

    def wait_event(self, event):
        self.waits.append(event)
        event.complete()

    def wait_stream(self, stream):
        self.waits.append(stream)

    def record_event(self):
        self.device.launched.append(Event(self.device))
        return self.device.launched[-1]


class LateDevice:
    """A device whose copies are complete no sooner than their event: until then their memory has no values."""

    def __init__(self):
        self.copies, self.threads = Stream(self), threading.local()
        self.last_copy = Event(self)
        self.streams, self.uses, self.host_waits, self.launched = [], [], [], []

    def current(self):
        if not hasattr(self.threads, "stream"):
            self.threads.stream = Stream(self)
            self.streams.append(self.threads.stream)
        return self.threads.stream

    def record_use(self, tensor):
        self.uses.append((self.current(), tensor.data_ptr()))

    def copy(self, stored, *, in_background):
        copied, earlier = torch.full_like(stored, torch.nan), self.last_copy
        event = Event(self, lambda: (earlier.complete(), copied.copy_(stored)))
        if in_background:
            self.last_copy = event  # a stream works in order
        else:
            event.complete()
        return Transfer(copied, event, self.copies if in_background else self.current(), reads_stored=True)


@pytest.fixture
def device(monkeypatch):
    made = LateDevice()
    monkeypatch.setattr(OffloadedWeight, "is_copied", True)
    monkeypatch.setattr(transfers, "streams_of", lambda device: made)
    return made


def test_the_stream_of_a_forward_waits_for_its_copies(device):
    model, weights = watched_model([4, 4, 4])
    for _ in range(3):
        assert torch.equal(run(model, [0, 1, 2]), wanted(weights, [0, 1, 2]))
    assert len(device.current().waits) == 2 * 3  # the first forward predicts nothing


def test_the_host_waits_for_kernels_before_it_fills_more_memory(device):
    model, _ = watched_model([4] * 6)
    run(model, range(6))
    device.launched.clear()
    held = []
    real = device.copy

    def copy(stored, *, in_background):
        held.append(2 + sum(not event.is_complete for event in device.launched[:-1]))
        return real(stored, in_background=in_background)

    device.copy = copy
    run(model, range(6))
    assert max(held[2:]) == 2  # the block whose kernels were launched last, and the one that is copied


def test_stored_values_are_not_read_after_the_forward_pass(device):
    model, _ = watched_model([4, 4, 4])
    run(model, [0, 1, 2])
    started = []
    real = device.copy
    device.copy = lambda *args, **options: started.append(real(*args, **options)) or started[-1]
    run(model, [0, 1, 2])
    run(model, [1])
    assert all(transfer.event.is_complete for transfer in started)


def test_each_stream_waits_for_a_shared_weight_and_keeps_its_memory(device):
    model, _ = watched_model([4])
    weight = offloaded_weights(model)[0]
    parameter = model.layers[0].weight
    weight.prefetch()
    first = weight.acquire(parameter)
    found = []

    def use():
        found.append((device.current(), weight.acquire(parameter)))

    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    stream, second = found[0]
    assert second is first
    assert device.streams[0] in stream.waits
    assert {user for user, address in device.uses if address == first.data_ptr()} == set(device.streams)
    assert len(device.streams) == 2


def test_what_one_stream_wrote_is_stored_by_another(device):
    model, _ = watched_model([4])
    weight, parameter = offloaded_weights(model)[0], model.layers[0].weight

    def write():
        with torch.no_grad():
            weight.acquire(parameter).fill_(3)

    weight.acquire(parameter)
    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    weight.release()
    device.current().waits.clear()
    weight.release()
    assert device.streams[1] in device.current().waits
    assert (weight.stored() == 3).all()
