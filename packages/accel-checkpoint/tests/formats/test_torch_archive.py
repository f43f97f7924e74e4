"""What is written tensor by tensor must be what `torch.load` reads."""

import pytest
import torch

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.formats.torch_archive import deferred_in, write_torch_archive
from accel_checkpoint.formats.torch_files import read_torch_file

VALUES = torch.arange(15.0).reshape(5, 3)


def make_content():
    fetched = []

    def fetch(name, values):
        fetched.append(name)
        return values

    first = DeferredTensor(VALUES.dtype, VALUES.shape, lambda: fetch("first", VALUES))
    second = DeferredTensor(
        torch.bfloat16, torch.Size([2]), lambda: fetch("second", torch.ones(2).bfloat16())
    )
    content = {
        "first": first,
        "again": first,
        "groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0, 1]}],
        "plain": {0: {"step": torch.tensor(3.0)}},
        "empty": torch.empty(0, 3),
        "turned": VALUES.T,
        "small": torch.tensor([1, 2], dtype=torch.int16).view(torch.uint16),
        "second": second,
    }
    return content, fetched


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_it(tmp_path, mmap):
    content, _ = make_content()
    path = tmp_path / "a.bin"
    with path.open("wb") as file:
        write_torch_archive(file, content)
    read = torch.load(path, weights_only=True, mmap=mmap)
    assert list(read) == list(content)
    assert read["groups"] == content["groups"]
    assert torch.equal(read["first"], VALUES)
    assert read["again"].data_ptr() == read["first"].data_ptr()
    assert read["second"].dtype == torch.bfloat16
    assert torch.equal(read["second"], torch.ones(2).bfloat16())
    for name in ("empty", "turned", "small"):
        assert torch.equal(read[name], content[name])
        assert read[name].dtype == content[name].dtype
    assert torch.equal(read["plain"][0]["step"], torch.tensor(3.0))
    read_torch_file(path)


def test_tensors_are_fetched_once_in_the_order_that_is_told_before(tmp_path):
    content, fetched = make_content()
    assert deferred_in(content) == [content["first"], content["second"]]
    with (tmp_path / "a.bin").open("wb") as file:
        write_torch_archive(file, content)
    assert fetched == ["first", "second"]
