import numpy as np
import torch

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
