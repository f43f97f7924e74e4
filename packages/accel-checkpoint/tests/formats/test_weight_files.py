from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from accel_checkpoint.formats.weight_files import CheckpointFile, checkpoint_files, read_weights
from accel_state.errors import CheckpointError


def write(folder: Path, **files: object) -> Path:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_a_single_file_counts_whole(tmp_path):
    write(tmp_path, any__bin="")
    assert checkpoint_files(tmp_path / "any.bin") == [CheckpointFile(tmp_path / "any.bin")]
    assert checkpoint_files(tmp_path) == [CheckpointFile(tmp_path / "any.bin")]


def test_an_index_is_read_in_both_documented_forms(tmp_path):
    write(tmp_path, first__bin="", second__bin="")
    weight_map = {"a": "second.bin", "b": "first.bin", "c": "second.bin"}
    expected = [
        CheckpointFile(tmp_path / "second.bin", frozenset("ac")),
        CheckpointFile(tmp_path / "first.bin", frozenset("b")),
    ]
    for content in (weight_map, {"metadata": {"total_size": 3}, "weight_map": weight_map}):
        write(tmp_path, index__json=content)
        assert checkpoint_files(tmp_path) == checkpoint_files(tmp_path / "index.json") == expected


def test_safetensors_come_before_bin_and_single_files_before_indexes(tmp_path):
    for whole in ("pytorch_model.bin", "model.safetensors"):
        stem, suffix = whole.split(".")
        shards = [f"{stem}-0000{number}-of-00002.{suffix}" for number in (1, 2)]
        write(tmp_path, **{name.replace(".", "__"): "" for name in shards})
        (tmp_path / f"{whole}.index.json").write_text(json.dumps({"a": shards[0], "b": shards[1]}))
        assert [file.path.name for file in checkpoint_files(tmp_path)] == shards
        (tmp_path / whole).write_text("")
        assert [file.path.name for file in checkpoint_files(tmp_path)] == [whole]


@pytest.mark.parametrize(
    "name",
    [
        "../x.bin",
        "/etc/passwd",
        "sub/x.bin",
        "..",
        ".",
        "",
        "..\\x.bin",
        "C:\\x.bin",
        "C:x.bin",
        "x.bin/",
        3,
        None,
    ],
)
def test_an_index_reaches_no_file_outside_its_folder(tmp_path, name):
    (tmp_path / "x.bin").write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder, index__json={"a": name})
    with pytest.raises(CheckpointError, match="Only plain names of files next to it are read"):
        checkpoint_files(folder)


def test_files_that_the_index_names_must_be_there(tmp_path):
    write(tmp_path, index__json={"a": "here.bin", "b": "gone.bin"}, here__bin="")
    with pytest.raises(CheckpointError, match=r"names files that are not next to it: gone\.bin"):
        checkpoint_files(tmp_path)


def test_shards_without_an_index_are_an_interrupted_save(tmp_path):
    (tmp_path / "model-00001-of-00002.safetensors").write_text("")
    with pytest.raises(CheckpointError, match="without their index, .* was interrupted"):
        checkpoint_files(tmp_path)


def test_several_candidates_are_named_and_not_chosen_from(tmp_path):
    write(tmp_path, one__bin="", two__safetensors="")
    with pytest.raises(CheckpointError, match=r"several checkpoints: one\.bin, two\.safetensors"):
        checkpoint_files(tmp_path)


@pytest.mark.parametrize("content", ["{", "[1]", "{}", '{"weight_map": []}', "[" * 100000])
def test_an_invalid_index_is_rejected(tmp_path, content):
    write(tmp_path, index__json=content)
    with pytest.raises(CheckpointError, match=r"index\.json` "):
        checkpoint_files(tmp_path)


def test_a_missing_checkpoint_is_an_error(tmp_path):
    with pytest.raises(CheckpointError, match="There is no checkpoint at"):
        checkpoint_files(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"has no checkpoint: none of model\.safetensors"):
        checkpoint_files(tmp_path)


@pytest.mark.skipif(os.name != "posix", reason="needs pipes with a name")
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_pipe_in_place_of_a_weight_file_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match="is not a regular file"):
        read_weights(tmp_path / name)
