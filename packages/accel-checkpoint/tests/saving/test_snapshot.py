import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel_checkpoint.saving import snapshot
from accel_checkpoint.saving.snapshot import HostBuffers


def copies(content, buffers):
    buffers.begin()
    return buffers.snapshot(content)


def test_a_copy_does_not_change_with_its_source():
    content = {"a": [torch.ones(3), {"b": torch.zeros(2)}], "n": 3, "s": "x"}
    copied = copies(content, HostBuffers())
    content["a"][0].fill_(9)
    content["a"].append(1)
    content["n"] = 4
    assert copied["a"][0].tolist() == [1, 1, 1]
    assert (len(copied["a"]), copied["n"]) == (2, 3)


def test_the_memory_is_reused():
    buffers, content = HostBuffers(), {"a": torch.ones(1000), "b": torch.ones(10)}
    first = copies(content, buffers)
    content["a"].fill_(2)
    second = copies(content, buffers)
    assert second["a"].data_ptr() == first["a"].data_ptr()
    assert second["a"][0] == 2
    assert buffers.num_bytes == 4040


def test_unused_memory_is_freed():
    buffers = HostBuffers()
    copies({"a": torch.ones(1000)}, buffers)
    copies({"b": torch.ones(1)}, buffers)
    copies({"b": torch.ones(1)}, buffers)
    assert buffers.num_bytes == 4


def test_a_tensor_that_occurs_twice_is_copied_once():
    weight = torch.ones(4)
    copied = copies({"a": weight, "b": weight}, HostBuffers())
    assert copied["a"] is copied["b"]


def test_mutable_values_are_copied():
    content = {"bytes": bytearray(b"a"), "set": {1}, "array": np.zeros(2), "list": [[1]]}
    copied = copies(content, HostBuffers())
    content["bytes"][0] = 0
    content["set"].add(2)
    content["array"][:] = 5
    content["list"][0].append(2)
    assert copied["bytes"] == b"a"
    assert copied["set"] == {1}
    assert copied["array"].tolist() == [0, 0]
    assert copied["list"] == [[1]]


def test_containers_keep_their_kind():
    copied = copies({"t": (1, torch.ones(1)), "l": [2], "size": torch.Size([3])}, HostBuffers())
    assert (type(copied["t"]), type(copied["l"]), type(copied["size"])) == (tuple, list, torch.Size)


class LateStream:
    """A stream whose copies happen when an event after them is waited for."""

    def __init__(self, device=None):
        self.copies, self.lock = [], threading.Lock()

    def wait_stream(self, other):
        self.awaited = other, len(other.copies)

    def record_event(self):
        return SimpleNamespace(synchronize=partial(self.complete, len(self.copies)))

    def complete(self, number):
        with self.lock:
            while self.num_complete < number:
                target, source = self.copies[self.num_complete]
                target.copy_(source)
                self.num_complete += 1

    num_complete = 0


class Queued(TorchDispatchMode):
    """Puts copies into a stream."""

    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            self.stream.copies.append(args[:2])
            return args[0]
        return function(*args, **(kwargs or {}))


@pytest.fixture
def late_device(monkeypatch):
    """Return the module of a device whose copies come late."""
    monkeypatch.setattr(snapshot, "_SLOT_BYTES", 64)
    monkeypatch.setattr(snapshot, "_NUM_SLOTS", 3)
    current = LateStream()
    return SimpleNamespace(
        Stream=LateStream,
        stream=Queued,
        current_stream=lambda device: current,
        set_device=lambda device: None,
    )


def test_a_device_is_copied_through_a_few_slots_that_are_emptied_before_they_are_filled_again(late_device):
    ring = snapshot._PinnedRing(torch.device("cpu"), late_device)
    sources = [
        torch.arange(100.0),
        torch.arange(24.0).view(4, 6).t(),
        torch.tensor(7, dtype=torch.int8),
        torch.empty(0),
        torch.tensor([1 + 2j]).conj(),
        torch.arange(33, dtype=torch.bfloat16),
    ]
    targets = [torch.full(source.shape, 99, dtype=source.dtype) for source in sources]
    for source, target in zip(sources, targets, strict=True):
        ring.copy(source, target)
    ring.join()
    stream, num_copies = late_device.current_stream(None).awaited
    assert num_copies == len(stream.copies)  # what is queued later waits for all of them
    ring.wait()
    assert all(map(torch.equal, targets, sources))


class Quantized(torch.Tensor):
    """A wrapper around codes and a scale, which torch can flatten; see `is_traceable_wrapper_subclass`."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["codes"], inner["scale"])

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        assert function is torch.ops.aten.detach.default
        return cls(args[0].codes, args[0].scale)


def test_the_inner_tensors_of_a_wrapper_are_copied_to_the_buffers_as_all_others():
    codes, buffers = torch.arange(8, dtype=torch.int8), HostBuffers()
    copied = copies({"w": Quantized(codes, torch.ones(2))}, buffers)["w"]
    codes.fill_(0)
    assert type(copied) is Quantized
    assert (copied.codes.tolist(), copied.scale.tolist()) == (list(range(8)), [1, 1])
    assert buffers.num_bytes == 16


def test_sparse_tensors_are_copied():
    sparse = torch.eye(3).to_sparse()
    copied = copies({"s": sparse}, HostBuffers())["s"]
    sparse._values().fill_(5)
    assert torch.equal(copied.to_dense(), torch.eye(3))


def test_the_memory_is_on_the_host_whatever_the_default_device_is():
    content = {"w": torch.ones(3), "empty": torch.empty(0)}
    with torch.device("meta"):
        copied = copies(content, HostBuffers())
    assert copied["w"].tolist() == [1, 1, 1]
    assert copied["empty"].device.type == "cpu"
