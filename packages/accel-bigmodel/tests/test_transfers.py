from __future__ import annotations

import contextlib
import gc
import mmap

import pytest
import torch
from torch import nn

from accel_bigmodel import cpu_offload, remove_hook_from_submodules, transfers
from accel_bigmodel.transfers import PinnedMemory, Streams, streams_of

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.gpu),
]


class Event:
    def synchronize(self):
        pass


class Stream:
    def __init__(self, device=None):
        self.waits = []

    def record_event(self):
        return Event()

    def wait_event(self, event):
        self.waits.append(event)


class Module:
    """What `torch.get_device_module` returns for a device with streams."""

    Stream = Stream

    def __init__(self):
        self.default = Stream()

    def current_stream(self, device):
        return self.default

    @contextlib.contextmanager
    def stream(self, stream):
        yield


class Runtime:
    """The functions of CUDA's runtime that lock memory."""

    def __init__(self):
        self.locked = {}

    def cudaHostRegister(self, address, num_bytes, flags):
        self.locked[address] = num_bytes
        return 0

    def cudaHostUnregister(self, address):
        del self.locked[address]


@pytest.fixture
def streams(request, monkeypatch):
    """Return the streams of a device, of the CPU with a stand-in for those of an accelerator."""
    if request.param == "cuda":
        return streams_of(torch.device("cuda", 0))
    staged = transfers.Staged.__init__
    monkeypatch.setattr(torch, "get_device_module", lambda device=None: Module())
    monkeypatch.setattr(
        transfers.Staged, "__init__", lambda self, n, is_pinned: staged(self, n, is_pinned=False)
    )
    return Streams(torch.device("cpu"))


@pytest.fixture
def runtime(monkeypatch):
    made = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: made)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return made


STORED = {
    "plain": torch.arange(1000.0),
    "large": torch.arange(3_000_001, dtype=torch.int32),
    "transposed": torch.randn(30, 40).t(),
    "channels last": torch.randn(4, 8, 3, 3).to(memory_format=torch.channels_last),
    "a row": torch.randn(30, 40)[3],
    "a column": torch.randn(30, 40)[:, 3],
    "expanded": torch.randn(1, 40).expand(30, 40),
    "bf16": torch.randn(7).bfloat16(),
    "flags": torch.randn(7) > 0,
    "conjugate": torch.randn(7, dtype=torch.complex64).conj(),
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
}


@pytest.mark.parametrize("streams", DEVICES, indirect=True)
@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("in_background", [True, False])
def test_a_copy_has_the_values_and_strides_of_what_is_stored(streams, name, in_background):
    stored = STORED[name]
    wanted = stored.to(streams.device, copy=True)
    transfer = streams.copy(stored, in_background=in_background)
    copied = transfer.wait()
    assert torch.equal(copied, wanted)
    assert (copied.stride(), copied.dtype) == (wanted.stride(), wanted.dtype)
    assert copied.data_ptr() != stored.data_ptr() or not stored.numel()


def test_large_memory_is_locked_where_it_is_in_whole_pages_and_only_once(runtime):
    flat = torch.zeros(9 << 20)
    parts = [flat[: 1 << 20], flat[(1 << 20) : 2 << 20], flat]
    alone = torch.zeros(8 << 20)
    pinned = PinnedMemory([*parts, alone, alone[1:], torch.zeros(7 << 20)])
    assert len(runtime.locked) == 2
    for (first, size), tensor in zip(
        sorted(runtime.locked.items()), sorted((flat, alone), key=torch.Tensor.data_ptr), strict=True
    ):
        assert first % mmap.PAGESIZE == size % mmap.PAGESIZE == 0
        assert first <= tensor.data_ptr()
        assert tensor.data_ptr() + tensor.nbytes <= first + size
        assert size < tensor.nbytes + 2 * mmap.PAGESIZE
    del pinned
    assert not runtime.locked


def test_files_that_are_mapped_are_not_locked(runtime, tmp_path):
    path = tmp_path / "values"
    path.write_bytes(bytes(32 << 20))
    pinned = PinnedMemory([torch.from_file(str(path), size=32 << 20, dtype=torch.uint8)])
    assert not runtime.locked
    del pinned


@pytest.mark.gpu
def test_memory_that_cannot_be_locked_leaves_the_device_usable():
    tensor = torch.zeros(8 << 20)
    pinned = PinnedMemory([tensor])
    assert tensor.is_pinned()
    address = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    assert not transfers._lock(address, tensor.nbytes)
    assert (torch.ones(4, device="cuda") + 1).sum() == 8
    assert pinned is not None


@pytest.mark.gpu
def test_an_offloaded_model_is_pinned_where_it_is_and_unpinned_with_its_hooks():
    model = nn.Sequential(*[nn.Linear(3072, 3072) for _ in range(3)])
    weights = [layer.weight.detach() for layer in model]
    x = torch.randn(2, 3072)
    wanted = model(x)
    cpu_offload(model, "cuda:0")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(model(x.cuda()).cpu(), wanted.detach(), rtol=1e-4, atol=1e-5)
    assert all(weight.is_pinned() for weight in weights)
    remove_hook_from_submodules(model)
    gc.collect()
    assert not any(weight.is_pinned() for weight in weights)
    torch.testing.assert_close(model(x), wanted)


@pytest.mark.gpu
def test_tensors_next_to_an_offloaded_model_can_be_copied_to_the_device():
    sizes = (100, 1 << 10, 1 << 18, 1 << 21)
    around = [torch.randn(size) for size in sizes]
    model = nn.Sequential(*[nn.Linear(600, 600) for _ in range(8)], nn.Linear(600, 16_000))
    around += [torch.randn(size) for size in sizes]
    cpu_offload(model, "cuda:0")
    with torch.no_grad():
        assert model(torch.randn(2, 600)).shape == (2, 16_000)
    assert all(torch.equal(tensor.cuda().cpu(), tensor) for tensor in around)
    with torch.no_grad():
        assert model(torch.randn(2, 600, device="cuda")).is_cuda


@pytest.mark.gpu
def test_at_most_two_blocks_are_on_the_device_while_kernels_are_slow():
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(10)])
    cpu_offload(model, "cuda:0")
    x, size = torch.randn(2, 2048, device="cuda"), 2048 * 2048 * 4
    for layer in model:
        layer.register_forward_hook(lambda *_: torch.cuda._sleep(40_000_000))
    with torch.no_grad():
        model(x)
        for _ in range(2):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_stats()["active_bytes.all.current"]
            model(x)
            torch.cuda.synchronize()
            peak = torch.cuda.memory_stats()["active_bytes.all.peak"]
            assert peak - before <= 2.2 * size


@pytest.mark.gpu
def test_running_statistics_come_back_from_the_device():
    model, twin = (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(2))
    twin.load_state_dict(model.state_dict())
    cpu_offload(model, "cuda:0", offload_buffers=True)
    x = torch.randn(16, 8)
    with torch.no_grad():
        model(x.cuda())
        twin(x)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value.cpu(), twin.state_dict()[name], rtol=1e-4, atol=1e-5)
