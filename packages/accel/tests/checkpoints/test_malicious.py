"""Malicious checkpoints: each is rejected with a clear error, and none of its code runs."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile

import numpy as np
import pytest
import torch
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils.data import DataLoader

from accel import Accelerator
from accel_checkpoint.formats import torch_files
from accel_checkpoint.saving import saver
from accel_state.errors import CheckpointError
from accel_state.runtime import reset_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")

TORCH_FILES = [
    "optimizer.bin",
    "scheduler.bin",
    "dl_state_dict.bin",
    "scaler.pt",
    "random_states_0.pkl",
    "custom_checkpoint_0.pkl",
]


class Meter:
    def state_dict(self):
        return {"total": torch.ones(3)}

    def load_state_dict(self, state):
        self.total = state["total"]


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def build():
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    # Held, for a run lets go of loaders that nobody holds.
    accelerator.held = accelerator.prepare(model, optimizer, scheduler, DataLoader(torch.arange(4)))
    accelerator.register_for_checkpointing(Meter())
    return accelerator


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "checkpoint_0"
    build().save_state(folder)
    reset_runtime()
    return folder


@pytest.fixture
def checkpoint(saved, tmp_path):
    """A good checkpoint without a manifest's say: only the readers themselves stand between a file and us."""
    return shutil.copytree(saved, tmp_path / "checkpoint_0")


def read_manifest(folder):
    """Return the manifest without its own digest, which is optional."""
    content = json.loads((folder / "accel_checkpoint.json").read_text())
    content.pop("seal", None)
    return content


def trust(folder):
    """Let the manifest agree with the files as they are now."""
    from accel_checkpoint.files import digest_of

    path = folder / "accel_checkpoint.json"
    content = read_manifest(folder)
    for entry in content["files"]:
        file = folder / entry["name"]
        if file.is_file():
            entry.update(num_bytes=file.stat().st_size, digest=digest_of(file))
    path.write_text(json.dumps(content))


def refused(folder, match=None):
    accelerator = build()
    with pytest.raises(CheckpointError, match=match):
        accelerator.load_state(folder)


@pytest.mark.parametrize("name", TORCH_FILES)
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_code_in_a_file_does_not_run(checkpoint, tmp_path, name, how):
    mark = tmp_path / "it-ran"
    if how == "torch":
        torch.save({"state": Bomb(str(mark)), "param_groups": []}, checkpoint / name)
    else:
        (checkpoint / name).write_bytes(pickle.dumps(Bomb(str(mark))))
    trust(checkpoint)
    refused(checkpoint, match=name)
    assert not mark.exists()


def test_code_in_pickled_weights_does_not_run(checkpoint, tmp_path):
    mark = tmp_path / "it-ran"
    (checkpoint / "model.safetensors").unlink()
    torch.save({"weight": Bomb(str(mark))}, checkpoint / "pytorch_model.bin")
    (checkpoint / "accel_checkpoint.json").unlink()
    random_states = torch.load(checkpoint / "random_states_0.pkl")
    del random_states["accel_format"]
    torch.save(random_states, checkpoint / "random_states_0.pkl")
    refused(checkpoint, match=r"pytorch_model.bin")
    assert not mark.exists()


class Made:
    """Unpickled as what ``build`` makes of ``arguments``, in the state ``state``."""

    def __init__(self, build, arguments, state=None):
        self.parts = (build, arguments) if state is None else (build, arguments, state)

    def __reduce__(self):
        return self.parts


def array_of(element):
    return Made(
        np.zeros(1).__reduce__()[0], (np.ndarray, (0,), b"b"), (1, (2,), element, False, b"\x41" * 16)
    )


def element_type(subtype, names, fields, flags):
    return Made(np.dtype, ("i8", False, True), (3, "<", subtype, names, fields, 8, 1, flags))


@pytest.mark.parametrize(
    "value",
    [
        array_of(element_type(None, ("a",), {"a": (np.dtype("i8"), 500)}, 0)),
        array_of(element_type((np.dtype("i8"), (1000,)), None, None, 0)),
        array_of(element_type(None, None, None, 1)),
        torch.zeros(1).expand(10**12),
        {"inner": [torch.zeros(1).expand(10**12)]},
    ],
    ids=["field-outside", "larger-elements", "pointers", "tensor-of-terabytes", "nested"],
)
def test_values_that_refer_to_foreign_memory_are_rejected(checkpoint, value):
    torch.save({"total": value}, checkpoint / "custom_checkpoint_0.pkl")
    trust(checkpoint)
    refused(checkpoint, match=r"custom_checkpoint_0.pkl.*( forged|whose argument is not written out)")


@pytest.mark.parametrize("name", TORCH_FILES)
def test_compressed_data_is_refused(checkpoint, name):
    packed = io.BytesIO()
    with (
        zipfile.ZipFile(checkpoint / name) as source,
        zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.namelist():
            target.writestr(member, source.read(member))
        target.writestr("archive/data/99", bytes(50_000_000))
    assert len(packed.getvalue()) < 200_000
    (checkpoint / name).write_bytes(packed.getvalue())
    trust(checkpoint)
    refused(checkpoint, match="compressed")


def test_an_archive_that_claims_more_than_it_has_is_refused(checkpoint):
    path = checkpoint / "optimizer.bin"
    content = bytearray(path.read_bytes())
    at = content.rfind(b"PK\x01\x02")  # the last entry of the table of contents: compressed and plain size
    content[at + 20 : at + 28] = struct.pack("<II", 2**31, 2**31)
    path.write_bytes(content)
    trust(checkpoint)
    refused(checkpoint, match=r"optimizer.bin")


@pytest.mark.parametrize(
    "name", ["../../evil.safetensors", "/etc/passwd", "sub/../../x.safetensors", "C:\\x.safetensors"]
)
def test_an_index_that_leads_out_of_the_folder_is_refused(checkpoint, tmp_path, name):
    (tmp_path / "evil.safetensors").write_bytes((checkpoint / "model.safetensors").read_bytes())
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"weight": name, "bias": name}})
    )
    content = read_manifest(checkpoint)
    content["files"] = [entry for entry in content["files"] if entry["name"] != "model.safetensors"]
    (checkpoint / "accel_checkpoint.json").write_text(json.dumps(content))
    refused(checkpoint, match="plain name")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "a/../../b", "", "C:/x"])
def test_a_manifest_that_leads_out_of_the_folder_is_refused(checkpoint, name):
    path = checkpoint / "accel_checkpoint.json"
    content = read_manifest(checkpoint)
    content["files"][0]["name"] = name
    path.write_text(json.dumps(content))
    refused(checkpoint, match="Only files inside the folder")


@pytest.mark.parametrize("name", [*TORCH_FILES, "model.safetensors", "accel_checkpoint.json"])
def test_a_symbolic_link_to_anything_but_a_file_is_refused(checkpoint, name):
    (checkpoint / name).unlink()
    (checkpoint / name).symlink_to("/dev/zero")
    refused(checkpoint, match="symbolic link")


@pytest.mark.parametrize("name", [*TORCH_FILES, "model.safetensors", "accel_checkpoint.json"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_refused(checkpoint, name, share):
    path = checkpoint / name
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(checkpoint, match=name)
    if name != "accel_checkpoint.json":
        trust(checkpoint)
        refused(checkpoint, match=name)


DAMAGES = {
    "bit": lambda content, at: content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :],
    "zeros": lambda content, at: content[:at] + bytes(min(512, len(content) - at)) + content[at + 512 :],
    "cut": lambda content, at: content[:at],
    "longer": lambda content, at: content[:at] + b"x" + content[at:],
}


@pytest.mark.parametrize("is_strict", [True, False])
@pytest.mark.parametrize("name", [*TORCH_FILES, "model.safetensors", "accel_checkpoint.json"])
def test_no_damage_is_loaded(checkpoint, name, is_strict):
    """Also none that a reader would take for content: numbers, names, or the padding between them."""
    accelerator = build()
    accelerator.load_state(checkpoint)
    path = checkpoint / name
    good = path.read_bytes()
    for kind, damage in DAMAGES.items():
        for share in (0.05, 0.9):
            damaged = damage(good, int(len(good) * share))
            if damaged == good:
                continue
            path.write_bytes(damaged)
            for verify in (False, True) if is_strict else (False,):
                with pytest.raises(CheckpointError, match=f"{name}`"):
                    accelerator.load_state(checkpoint, strict=is_strict, verify=verify)
                    pytest.fail(f"{kind} at {share} was loaded")
    path.write_bytes(good)
    accelerator.load_state(checkpoint)


def test_bits_flipped_anywhere_never_do_more_than_raise_our_error(checkpoint):
    """Nor would they without digests."""
    accelerator = build()
    for name in TORCH_FILES:
        path = checkpoint / name
        good = path.read_bytes()
        for at in range(0, min(len(good), 1200), 97):
            content = bytearray(good)
            content[at] ^= 0x10
            path.write_bytes(content)
            trust(checkpoint)
            try:
                accelerator.load_state(checkpoint)
            except CheckpointError:
                continue
        path.write_bytes(good)
        trust(checkpoint)
    accelerator.load_state(checkpoint, verify=True)


def test_with_an_old_torch_checkpoints_of_others_are_loaded_only_if_trusted(checkpoint, monkeypatch):
    """Own are those of this process, and those in the folder of the project."""
    monkeypatch.setattr(torch_files, "torch_release", lambda: TorchVersion("2.9.1"))
    accelerator = build()
    accelerator.load_state(checkpoint)
    monkeypatch.setattr(saver, "_tokens", set())  # as in another process
    refused(checkpoint, match=r"CVE-2026-24747.*`trusted=True`")
    accelerator.load_state(checkpoint, trusted=True)
    project = checkpoint.parent / "project"
    shutil.copytree(checkpoint, project / "checkpoints" / "checkpoint_0")
    accelerator.project_configuration.set_directories(str(project))
    accelerator.load_state()


@pytest.mark.parametrize("size", [2**63, 200_000_000, 2**40])
def test_a_huge_header_is_refused(checkpoint, size):
    path = checkpoint / "model.safetensors"
    path.write_bytes(struct.pack("<Q", size) + path.read_bytes()[8:])
    trust(checkpoint)
    refused(checkpoint, match=r"model.safetensors")


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b"{}", b"[]", b'{"format": "accel-checkpoint", "version": 99}', b"\xff"]
)
def test_a_manifest_of_another_kind_is_refused(checkpoint, content):
    (checkpoint / "accel_checkpoint.json").write_bytes(content)
    refused(checkpoint, match=r"accel_checkpoint.json|version 99")


@pytest.mark.parametrize(
    "change",
    [
        {"iteration": "3"},
        {"iteration": -1},
        {"iteration": [1]},
        {"strategy": 5},
        {"strategy": None},
        {"model_format": ["full"]},
        {"token": 3},
        {"step": -1},
        {"step": True},
        {"step": 1.5},
        {"place": -1},
        {"world_size": "1"},
        {"objects": {"models": [3]}},
        {"objects": {"models": 3}},
        {"objects": []},
        {"files": [{"name": "a", "num_bytes": -1, "digest": ""}]},
        {"files": [{"name": "a", "num_bytes": "1", "digest": ""}]},
        {"files": [{"name": "a", "num_bytes": 1, "digest": 5}]},
    ],
    ids=str,
)
def test_a_manifest_with_a_field_of_the_wrong_type_is_refused(checkpoint, change):
    path = checkpoint / "accel_checkpoint.json"
    path.write_text(json.dumps(read_manifest(checkpoint) | change))
    refused(checkpoint, match=r"manifest `.*accel_checkpoint.json` is damaged")


def test_a_manifest_that_is_a_pipe_is_refused(checkpoint):
    (checkpoint / "accel_checkpoint.json").unlink()
    os.mkfifo(checkpoint / "accel_checkpoint.json")
    refused(checkpoint, match="is not a regular file")


def test_content_of_the_wrong_shape_is_refused(checkpoint):
    for name in TORCH_FILES:
        if name == "custom_checkpoint_0.pkl":
            continue  # what a person's object takes is its own affair
        good = (checkpoint / name).read_bytes()
        for content in ([], {}, 7, {"state": 3, "param_groups": 4}, {"state": {}, "param_groups": [{}]}):
            torch.save(content, checkpoint / name)
            trust(checkpoint)
            refused(checkpoint, match=name)
        (checkpoint / name).write_bytes(good)
