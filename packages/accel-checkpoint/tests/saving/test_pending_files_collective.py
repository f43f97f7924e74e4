import pytest
import torch

from accel_checkpoint.saving.pending_files import SafetensorsFile, TorchFile, snapshot_of, write_file
from accel_checkpoint.saving.snapshot import HostBuffers
from accel_checkpoint.tensors import DeferredTensor


def make_file(kind, fetched, *, is_writer):
    def deferred(name, size):
        def get():
            fetched.append(name)
            return torch.full((size,), 1.0)

        return DeferredTensor(torch.float32, torch.Size([size]), get)

    tensors = {
        "small": deferred("small", 3),
        "large": deferred("large", 64),
        "middle": deferred("middle", 16),
    }
    if kind == "safe":
        return SafetensorsFile("a.safetensors", tensors, is_writer=is_writer)
    return TorchFile("a.bin", tensors, is_writer=is_writer)


KINDS = pytest.mark.parametrize("kind", ["safe", "torch"])


@KINDS
@pytest.mark.parametrize("ends", ["written", "copied", "fails"])
def test_all_ranks_fetch_in_the_same_order_whatever_happens(tmp_path, kind, ends):
    """Each fetch is a collective."""
    orders = []
    for is_writer in (True, False):
        fetched = []
        file = make_file(kind, fetched, is_writer=is_writer)
        if ends == "copied":
            assert (snapshot_of(file, HostBuffers()) is not None) == is_writer
        elif ends == "written" or not is_writer:
            assert (write_file(file, tmp_path, replace=True) is not None) == is_writer
        else:
            (tmp_path / file.name).touch()
            with pytest.raises(FileExistsError):
                write_file(file, tmp_path)
        orders.append(fetched)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == ["large", "middle", "small"]
