"""Bytes of files read into tensors, on the CPU and through the ring of buffers to an accelerator.

The accelerator is a stand-in: its stream executes copies only when something waits for them, as late as a device may.
"""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

from accel_bigmodel.loading import reads
from accel_bigmodel.loading.reads import ParallelReads
from accel_checkpoint.formats.weight_files import ByteRange, read_layout
from accel_state.errors import CheckpointError

TENSORS = {
    "a": torch.arange(7, dtype=torch.uint8),  # what follows is not aligned
    "b": torch.rand(30, 5),
    "c": torch.rand(()),
    "d": torch.rand(2, 0),
    "e": torch.rand(900).bfloat16(),
    "f": torch.randint(-9, 9, (40, 2)),
    "g": torch.rand(3).to(torch.float8_e4m3fn),
    "h": torch.rand(300, dtype=torch.complex64),
}


class LateStream:
    """A stream on which nothing happens until something waits."""

    def __init__(self):
        self.pending, self.lock = [], threading.RLock()
        self.num_waited_for = 0

    def wait_stream(self, other):
        pass

    def synchronize(self):
        self.run(len(self.pending))

    def run(self, number):
        with self.lock:
            while self.num_waited_for < number:
                self.pending[self.num_waited_for]()
                self.num_waited_for += 1

    def record_event(self):
        event = LateEvent()
        event.stream, event.number = self, len(self.pending)
        return event


class LateEvent:
    def synchronize(self):
        self.stream.run(self.number)


class Late(TorchFunctionMode):
    def __init__(self, stream):
        super().__init__()
        self.stream = stream

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.copy_:
            with self.stream.lock:
                self.stream.pending.append(lambda: func(*args))
            return args[0]
        return func(*args, **(kwargs or {}))


class Accelerator:
    """What `torch.get_device_module` returns for a device."""

    def __init__(self):
        self.late = LateStream()

    def current_stream(self, device):
        return None

    @contextlib.contextmanager
    def stream(self, stream):
        with Late(stream):
            yield


@pytest.fixture
def accelerator(monkeypatch):
    """The CPU as an accelerator: bytes go through pinned buffers and a stream next to the computation."""
    made = Accelerator()
    monkeypatch.setattr(reads, "copy_stream", lambda device: made.late)
    monkeypatch.setattr(reads, "_is_in_place", lambda tensor, stored: False)
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: made)
    staged = reads.Staged.__init__
    monkeypatch.setattr(reads.Staged, "__init__", lambda self, n, is_pinned: staged(self, n, is_pinned=False))
    return made


def read_all(path, dtypes):
    layout, all_reads = read_layout(path), ParallelReads()
    made = {
        name: torch.empty(place.shape, dtype=dtypes(place.dtype)) for name, place in layout.ranges.items()
    }
    for name, place in layout.ranges.items():
        all_reads.add(made[name], path, place)
    all_reads.run()
    return made


@pytest.mark.parametrize("read_bytes", [64, 1024, 8 << 20])
@pytest.mark.parametrize("device", ["cpu", "accelerator"])
@pytest.mark.parametrize("is_converted", [False, True])
def test_every_tensor_has_the_values_of_the_file(
    tmp_path, monkeypatch, request, read_bytes, device, is_converted
):
    late = request.getfixturevalue("accelerator").late if device == "accelerator" else None
    monkeypatch.setattr(reads, "_READ_BYTES", read_bytes)
    save_file(TENSORS, tmp_path / "m.safetensors")

    def dtypes(stored):
        return torch.float64 if is_converted and stored.is_floating_point else stored

    for name, found in read_all(tmp_path / "m.safetensors", dtypes).items():
        assert torch.equal(found, TENSORS[name].to(dtypes(TENSORS[name].dtype))), name
    assert late is None or late.num_waited_for == len(late.pending) > 0


def test_a_buffer_is_filled_again_only_when_its_copies_are_complete(tmp_path, monkeypatch, accelerator):
    monkeypatch.setattr(reads, "_READ_BYTES", 64)
    monkeypatch.setattr(reads, "_NUM_STAGED", 2)
    save_file({"w": torch.arange(4096)}, tmp_path / "m.safetensors")
    found = read_all(tmp_path / "m.safetensors", lambda stored: stored)
    assert torch.equal(found["w"], torch.arange(4096))


@pytest.mark.parametrize("device", ["cpu", "accelerator"])
def test_a_file_that_ends_too_early_is_refused_after_all_copies(tmp_path, monkeypatch, request, device):
    late = request.getfixturevalue("accelerator").late if device == "accelerator" else None
    monkeypatch.setattr(reads, "_READ_BYTES", 64)
    (tmp_path / "raw").write_bytes(bytes(1000))
    all_reads = ParallelReads()
    all_reads.add(
        torch.ones(2000, dtype=torch.uint8), tmp_path / "raw", ByteRange(torch.uint8, (2000,), 0, 2000)
    )
    with pytest.raises(CheckpointError, match="`.*raw` ends too early"):
        all_reads.run()
    assert late is None or late.num_waited_for == len(late.pending)


def test_systems_without_preadv_read_the_same(tmp_path, monkeypatch):
    monkeypatch.delattr("os.preadv")
    save_file(TENSORS, tmp_path / "m.safetensors")
    for name, found in read_all(tmp_path / "m.safetensors", lambda stored: stored).items():
        assert torch.equal(found, TENSORS[name]), name


def test_bytes_are_never_read_into_a_tensor_of_another_size(tmp_path):
    all_reads = ParallelReads()
    for tensor in (torch.zeros(15), torch.zeros(17), torch.zeros(8, 4)[:, ::2]):
        with pytest.raises(ValueError, match="64 bytes of .* cannot be read into a tensor"):
            all_reads.add(tensor, tmp_path / "bytes", ByteRange(torch.float32, (16,), 0, 64))


def test_values_are_converted_through_memory_of_the_cpu_whatever_the_default_device_is(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    layout, all_reads = read_layout(tmp_path / "m.safetensors"), ParallelReads()
    name, place = next((n, p) for n, p in layout.ranges.items() if p.dtype.is_floating_point)
    made = torch.empty(place.shape, dtype=torch.float64)
    all_reads.add(made, tmp_path / "m.safetensors", place)
    with torch.device("meta"):
        all_reads.run()
    assert torch.equal(made, TENSORS[name].double())
