import threading
import weakref

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from accel_checkpoint.saving import snapshot
from accel_checkpoint.saving.snapshot import HostBuffers


def copies(content, buffers):
    buffers.start()
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


def test_unused_memory_is_freed():
    buffers = HostBuffers()
    unused = weakref.ref(copies({"a": torch.ones(1000), "b": torch.ones(10)}, buffers)["b"])
    copies({"a": torch.ones(1000)}, buffers)
    copies({"a": torch.ones(1000)}, buffers)
    assert unused() is None


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


class LateStream(TorchDispatchMode):
    """A stream whose copies happen when it is waited for."""

    def __init__(self, device=None):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            self.copies.append(args[:2])
            return args[0]
        return function(*args, **(kwargs or {}))

    def synchronize(self):
        with _disable_current_modes():
            for target, source in self.copies:
                target.copy_(source)
        self.copies.clear()


class LateDevice(threading.local):
    """Stands in for the module of a device; each thread has a current stream."""

    Stream = LateStream

    def __init__(self):
        self.stream = LateStream()

    def set_device(self, device):
        pass

    def set_stream(self, stream):
        self.stream = stream.__enter__()

    def current_stream(self, device):
        return self.stream


def test_a_device_is_copied_in_small_pieces_after_what_the_callers_stream_computes(monkeypatch):
    monkeypatch.setattr(snapshot, "_CHUNK_BYTES", 64)
    monkeypatch.setattr(snapshot, "_NUM_THREADS", 3)
    device = LateDevice()
    monkeypatch.setattr(snapshot, "streams_of", lambda _: device)
    content = {
        "long": torch.arange(100.0),
        "transposed": torch.arange(24.0).view(4, 6).t(),
        "scalar": torch.tensor(7, dtype=torch.int8),
        "empty": torch.empty(0),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "late": torch.zeros(33, dtype=torch.bfloat16),
    }
    device.stream.copies.append((content["late"], torch.arange(33)))
    copied = copies(content, HostBuffers())
    assert content["late"][32] == 32
    assert all(torch.equal(copied[name], value) for name, value in content.items())
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in copied.values())


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
    assert copied.codes.data_ptr() == copies({"w": copied}, buffers)["w"].codes.data_ptr()


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
