from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from accel_checkpoint.formats.weight_files import checkpoint_files, read_weights
from accel_checkpoint.saving.model_weights import save_model
from accel_checkpoint.saving.pending_files import SafetensorsFile
from accel_checkpoint.saving.staging import temporary_folder
from accel_checkpoint.tensors import DeferredTensor
from accel_state.errors import CheckpointError, ConfigError
from tools.harness.scripts import run_script


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.mix = nn.Linear(4, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)


def assert_same_state(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert set(got) == set(wanted)
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype, name
        assert torch.equal(got[name], tensor), name


def load_state_dict(path: Path) -> dict[str, torch.Tensor]:
    return read_weights(path)


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_save_model_writes_one_file_that_plain_safetensors_reads(tmp_path):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    written = save_model(model, tmp_path / "made" / "here")
    assert written == [tmp_path / "made" / "here" / "model.safetensors"]
    assert names_in(written[0].parent) == ["model.safetensors"]
    assert_same_state(load_file(written[0]), model.state_dict())


def test_save_model_without_safe_serialization_writes_what_torch_load_reads(tmp_path):
    model = Tied()
    written = save_model(model, tmp_path, safe_serialization=False)
    assert names_in(tmp_path) == ["pytorch_model.bin"]
    plain = torch.load(written[0], weights_only=True)
    assert_same_state(plain, model.state_dict())
    assert plain["embed.weight"].data_ptr() == plain["head.weight"].data_ptr()


def test_save_model_accepts_a_state_dict_with_parameters_in_it(tmp_path):
    weight = nn.Parameter(torch.randn(2, 2))
    for safe in (True, False):
        save_model({"weight": weight}, tmp_path / str(safe), safe_serialization=safe)
        (file,) = (tmp_path / str(safe)).iterdir()
        assert torch.equal(load_state_dict(file)["weight"], weight.detach())


@pytest.mark.parametrize(
    ("safe", "stem", "end"), [(True, "model", "safetensors"), (False, "pytorch_model", "bin")]
)
def test_shards_hold_every_tensor_once_and_the_index_names_where(tmp_path, safe, stem, end):
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])  # 256 and 32 bytes each
    written = save_model(model, tmp_path, max_shard_size=600, safe_serialization=safe)
    shards = [f"{stem}-0000{i}-of-00002.{end}" for i in (1, 2)]
    assert [path.name for path in written] == [*shards, f"{stem}.{end}.index.json"]
    assert names_in(tmp_path) == sorted(path.name for path in written)
    index = json.loads(written[-1].read_text())
    assert index["metadata"] == {"total_size": 4 * 288}
    found: dict[str, torch.Tensor] = {}
    for shard in shards:
        content = load_state_dict(tmp_path / shard)
        assert set(content) == {name for name, file in index["weight_map"].items() if file == shard}
        assert not set(content) & set(found)
        found |= content
    assert_same_state(found, model.state_dict())


def test_a_tensor_larger_than_a_shard_gets_a_separate_file(tmp_path):
    state = {"a": torch.zeros(10), "big": torch.zeros(1000), "z": torch.zeros(10)}
    save_model(state, tmp_path, max_shard_size="100B")
    assert [set(load_file(path)) for path in sorted(tmp_path.glob("*.safetensors"))] == [
        {"a"},
        {"big"},
        {"z"},
    ]


def test_tied_weights_are_saved_once_under_their_first_name(tmp_path):
    model = Tied()
    (path,) = save_model(model, tmp_path)
    plain = load_file(path)
    assert "embed.weight" in plain
    assert "head.weight" not in plain
    assert_same_state(load_state_dict(path), model.state_dict())
    fresh = Tied()
    missing, unexpected = fresh.load_state_dict(plain, strict=False)
    assert (missing, unexpected) == (["head.weight"], [])
    assert torch.equal(fresh.head.weight, model.head.weight)


@pytest.mark.parametrize("is_deferred", [False, True])
def test_bin_files_hold_each_tensor_once(tmp_path, is_deferred):
    values = torch.arange(15.0).reshape(5, 3)
    first = DeferredTensor(values.dtype, values.shape, lambda: values) if is_deferred else values
    state = {"first": first, "again": first, "small": torch.tensor([1, 2]).to(torch.uint16)}
    (path,) = save_model(state, tmp_path, safe_serialization=False)
    plain = torch.load(path, weights_only=True)
    assert torch.equal(plain["first"], values)
    assert plain["again"].data_ptr() == plain["first"].data_ptr()
    assert plain["small"].dtype == torch.uint16


def test_names_that_share_a_storage_stay_in_one_bin_shard(tmp_path):
    weight = torch.randn(100)
    state = {"first": weight, "between": torch.randn(100), "second": weight}
    save_model(state, tmp_path, max_shard_size=400, safe_serialization=False)
    first = torch.load(tmp_path / "pytorch_model-00001-of-00002.bin", weights_only=True)
    assert set(first) == {"first", "second"}
    assert first["first"].data_ptr() == first["second"].data_ptr()


@pytest.mark.parametrize("safe", [True, False])
def test_views_overlaps_and_strides_keep_their_values(tmp_path, safe):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "transposed": base.t(),
        "whole": base,
        "rows": base[1:3],
        "flat": base.view(-1),
        "every_second": base[:, ::2],
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "conjugate": torch.tensor([1 + 2j]).conj(),
        "scalar": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "also_empty": torch.zeros(2, 0),
    }
    (path,) = save_model(state, tmp_path, safe_serialization=safe)
    assert_same_state(load_state_dict(path), state)


def test_a_small_window_on_a_large_storage_does_not_drag_it_into_the_file(tmp_path):
    huge = torch.zeros(1_000_000)
    for safe in (True, False):
        (path,) = save_model({"window": huge[:10], "again": huge[:10]}, tmp_path, safe_serialization=safe)
        assert path.stat().st_size < 10_000
        path.unlink()


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool, torch.float8_e4m3fn]
)
def test_every_type_of_number_comes_back_as_it_was(tmp_path, dtype):
    tensor = torch.tensor([0, 1, 1, 0]).to(dtype)
    (path,) = save_model({"x": tensor}, tmp_path)
    assert load_file(path)["x"].dtype == dtype
    assert torch.equal(load_file(path)["x"].float(), tensor.float())


def test_tensors_without_values_are_refused_by_name(tmp_path):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(
        CheckpointError, match=r"`1\.weight`, `1\.bias` of model 0 cannot be saved: on the meta device"
    ):
        save_model(model, tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_what_safetensors_cannot_hold_is_refused_by_name_and_goes_into_bin(tmp_path):
    state = {"fine": torch.ones(2), "sparse": torch.eye(3).to_sparse(), "note": "text"}
    with pytest.raises(CheckpointError, match=r"`sparse` is a tensor of layout .*; `note` is of type str"):
        save_model(state, tmp_path)
    assert names_in(tmp_path) == []
    (path,) = save_model(state, tmp_path, safe_serialization=False)
    loaded = torch.load(path, weights_only=True)
    assert loaded["note"] == "text"
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))


def test_earlier_files_of_the_format_go_and_all_others_stay(tmp_path):
    mine = ["notes.txt", "model_1.safetensors", "optimizer.bin", "model-final.safetensors"]
    for name in mine:
        (tmp_path / name).write_text("mine")
    big = nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])
    save_model(big, tmp_path, max_shard_size=300)
    assert len(list(tmp_path.glob("model-0000?-of-00004.safetensors"))) == 4
    save_model(big, tmp_path, max_shard_size=600)
    assert names_in(tmp_path) == sorted(
        [
            *mine,
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ]
    )
    save_model(big, tmp_path)
    assert names_in(tmp_path) == sorted([*mine, "model.safetensors"])
    save_model(big, tmp_path, max_shard_size=600)
    assert "model.safetensors" not in names_in(tmp_path)


def test_a_save_that_fails_leaves_the_earlier_one_whole_and_nothing_else(tmp_path, monkeypatch):
    old = {"a": torch.ones(100), "b": torch.ones(100)}
    save_model(old, tmp_path, max_shard_size=400)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    real = SafetensorsFile.write

    def fail_on_second(self, sink):
        if "-00002-of-" in self.name:
            raise OSError("no space left on device")
        real(self, sink)

    monkeypatch.setattr(SafetensorsFile, "write", fail_on_second)
    with pytest.raises(
        CheckpointError, match="-00002-of-00002.safetensors` could not be written: no space left"
    ):
        save_model({"a": torch.zeros(100), "b": torch.zeros(100)}, tmp_path, max_shard_size=400)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_an_interruption_between_the_renames_never_leaves_an_index_over_mixed_shards(tmp_path, monkeypatch):
    save_model({"a": torch.ones(100), "b": torch.ones(100)}, tmp_path, max_shard_size=400)
    real, renamed = Path.replace, []

    def killed_at_second(self, target):
        renamed.append(self.name)
        if len(renamed) == 2:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", killed_at_second)
    with pytest.raises(KeyboardInterrupt):
        save_model({"a": torch.zeros(100), "b": torch.zeros(100)}, tmp_path, max_shard_size=400)
    assert renamed == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    assert "model.safetensors.index.json" not in names_in(tmp_path)


def test_the_new_files_are_on_disk_before_the_first_rename_and_the_old_go_last(tmp_path, monkeypatch):
    save_model({"a": torch.ones(100)}, tmp_path)
    events = []

    def sync(descriptor):
        events.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    monkeypatch.setattr(os, "fsync", sync)
    real_replace, real_unlink = Path.replace, Path.unlink

    def replace(self, target):
        events.append(f"rename {self.name}")
        return real_replace(self, target)

    def unlink(self, missing_ok=False):
        events.append(f"unlink {self.name}")
        return real_unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "replace", replace)
    monkeypatch.setattr(Path, "unlink", unlink)
    save_model({"a": torch.zeros(100), "b": torch.zeros(100)}, tmp_path, max_shard_size=400)
    one, two, index = (
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    )
    assert events == [
        f"sync {one}", f"sync {two}", f"sync {index}",
        f"rename {one}", f"rename {two}", f"sync {tmp_path.name}",
        f"rename {index}", f"sync {tmp_path.name}",
        "unlink model.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("num_before", [2, 3])
def test_until_the_new_index_is_there_an_old_one_never_names_new_files(tmp_path, monkeypatch, num_before):
    save_model({name: torch.zeros(100) for name in "abc"[:num_before]}, tmp_path, max_shard_size=400)

    def killed(self, target):
        if self.name.endswith("index.json"):
            raise KeyboardInterrupt
        return real_replace(self, target)

    real_replace = Path.replace
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        save_model({name: torch.ones(100) for name in "ab"}, tmp_path, max_shard_size=400)
    if num_before == 2:  # the new files have the names of the old: there is no index, and so no mixture
        with pytest.raises(CheckpointError, match="without their index"):
            checkpoint_files(tmp_path)
    else:
        state = {}
        for file in checkpoint_files(tmp_path):
            state |= load_state_dict(file.path)
        assert sorted(state) == ["a", "b", "c"]
        assert not any(tensor.any() for tensor in state.values())


def test_bin_next_to_older_safetensors_is_reported(tmp_path):
    save_model({"a": torch.ones(1)}, tmp_path)
    with pytest.warns(UserWarning, match="which readers prefer to the new `pytorch_model.bin`"):
        save_model({"a": torch.zeros(1)}, tmp_path, safe_serialization=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_model({"a": torch.zeros(1)}, tmp_path)


def test_a_file_where_the_folder_should_be_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="`save_directory` must be a folder"):
        save_model({"a": torch.ones(1)}, tmp_path / "file")


def test_a_size_that_is_none_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match="`5 apples` is not a size"):
        save_model({"a": torch.ones(1)}, tmp_path / "never", max_shard_size="5 apples")
    assert not (tmp_path / "never").exists()


def test_an_empty_state_dict_is_a_file_without_tensors(tmp_path):
    (path,) = save_model(nn.ReLU(), tmp_path)
    assert load_file(path) == {}


def test_what_a_dead_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path):
    source = "from accel_checkpoint.process_identity import stamp; print(stamp())"
    done = run_script("-c", source)
    dead = tmp_path / f".tmp-weights-0123abcd-{done.stdout.strip()}-1"
    foreign = tmp_path / ".tmp-weights-0123abcd-01234567-1-2-1"
    with temporary_folder(tmp_path, "weights") as live:
        for folder in (dead, live, foreign):
            folder.mkdir(exist_ok=True)
            (folder / "half").write_text("x")
        save_model({"a": torch.ones(1)}, tmp_path)
        assert not dead.exists()
        assert (live / "half").exists()
        assert (foreign / "half").exists()


KILLED = """
import os, signal, sys, torch
from accel_checkpoint.saving.model_weights import save_model
from accel_checkpoint.saving.staging import temporary_folder
from accel_checkpoint.saving.pending_files import SafetensorsFile
real = SafetensorsFile.write
def write(self, sink):
    if "-00002-of-" in self.name:
        os.kill(os.getpid(), signal.SIGKILL)
    real(self, sink)
SafetensorsFile.write = write
save_model({"a": torch.zeros(100), "b": torch.zeros(100)}, sys.argv[1], 400)
"""


def test_a_killed_save_leaves_the_earlier_one_and_the_next_tidies_up(tmp_path):
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    save_model(state, tmp_path, 400)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = run_script("-c", KILLED, str(tmp_path))
    assert done.returncode < 0
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert after == before
    assert len(list(tmp_path.iterdir())) == len(before) + 1
    save_model(state, tmp_path, 400)
    assert {path.name for path in tmp_path.iterdir()} == set(before)
