"""With a torch that a pickle can make run code, files of others are read only if requested by name."""

import pytest
import torch
from torch.torch_version import TorchVersion

from accel_checkpoint import CheckpointFolder, SavedCheckpoint, load, trusted_files
from accel_checkpoint.formats import torch_files
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")
REFUSED = pytest.raises(
    CheckpointError, match=r"make torch 2.9.1 run code \(CVE-2026-24747\).*`trusted=True`"
)


@pytest.fixture
def old_torch(monkeypatch):
    monkeypatch.setattr(torch_files, "torch_release", lambda: TorchVersion("2.9.1"))


@pytest.fixture
def path(tmp_path):
    torch.save({"a": torch.ones(2)}, tmp_path / "a.bin")
    return tmp_path / "a.bin"


@pytest.mark.usefixtures("old_torch")
def test_a_pickle_is_read_only_if_it_is_trusted(path):
    with REFUSED:
        read_torch_file(path)
    with trusted_files():
        assert torch.equal(read_torch_file(path)["a"], torch.ones(2))
    with trusted_files(False), REFUSED:
        read_torch_file(path)
    with trusted_files(), trusted_files(False):
        read_torch_file(path)
    with REFUSED:
        load(path)
    assert torch.equal(load(path, trusted=True)["a"], torch.ones(2))


@pytest.mark.parametrize("release", ["2.10.0", "2.13.0+cpu", "3.0"])
def test_later_releases_read_all_files(path, monkeypatch, release):
    monkeypatch.setattr(torch_files, "torch_release", lambda: TorchVersion(release))
    read_torch_file(path)


@pytest.mark.usefixtures("old_torch")
def test_the_checkpoints_of_a_folder_are_the_runs_own_and_others_are_not(tmp_path):
    folder = CheckpointFolder(tmp_path)
    with folder.save(1) as stage:
        stage.write("optimizer.bin", {"lr": 0.1})
        stage.write("model.safetensors", {"a": torch.ones(2)})
    assert (
        folder.newest().read("optimizer.bin") == folder.checkpoints()[0].read("optimizer.bin") == {"lr": 0.1}
    )
    other = SavedCheckpoint(tmp_path / "checkpoint_1")
    assert torch.equal(other.read("model.safetensors")["a"], torch.ones(2))
    with REFUSED:
        other.read("optimizer.bin")
    assert SavedCheckpoint(other.path, trusted=True).read("optimizer.bin") == {"lr": 0.1}
