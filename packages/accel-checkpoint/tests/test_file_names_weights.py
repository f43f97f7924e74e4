from __future__ import annotations

import pytest

from accel_checkpoint.file_names import PICKLED, SAFETENSORS


def test_shards_are_called_as_readers_expect():
    assert SAFETENSORS.shard(1, num_shards=12) == "model-00001-of-00012.safetensors"
    assert PICKLED.shard(12, num_shards=12) == "pytorch_model-00012-of-00012.bin"
    assert SAFETENSORS.index == "model.safetensors.index.json"


@pytest.mark.parametrize(
    "name", ["model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors"]
)
def test_a_format_owns_what_it_writes_and_not_what_the_other_does(name):
    assert SAFETENSORS.matches(name)
    assert not PICKLED.matches(name)


@pytest.mark.parametrize(
    "name",
    ["model_1.safetensors", "my-model-00001-of-00002.safetensors", "model-final.safetensors", "model.bin",
     "model-00001-of-00002.safetensors.bak", "model-00001-of-00002xsafetensors", "optimizer.bin"],
)  # fmt: skip
def test_files_of_others_are_not_owned(name):
    assert not SAFETENSORS.matches(name)
    assert not PICKLED.matches(name)
