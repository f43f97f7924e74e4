import pytest
import torch

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.saving.pending_files import CollectiveFile, SafetensorsFile, TorchFile
from accel_checkpoint.saving.snapshot import HostBuffers


def make_file(kind, fetched):
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
    return SafetensorsFile("a.safetensors", tensors, {}) if kind == "safe" else TorchFile("a.bin", tensors)


KINDS = pytest.mark.parametrize("kind", ["safe", "torch"])


@KINDS
@pytest.mark.parametrize("ends", ["written", "copied", "fails"])
def test_all_ranks_fetch_in_the_same_order_whatever_happens(tmp_path, kind, ends):
    """Each fetch is a collective."""
    orders = []
    for is_writer in (True, False):
        fetched = []
        file = make_file(kind, fetched)
        shared = CollectiveFile(file.deferred(), file if is_writer else None)
        if ends == "copied":
            shared.snapshot(HostBuffers())
        elif ends == "written" or not is_writer:
            shared.write(tmp_path, replace=True)
        else:
            (tmp_path / file.name).touch()
            with pytest.raises(FileExistsError):
                shared.write(tmp_path)
        orders.append(fetched)
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == ["large", "middle", "small"]
