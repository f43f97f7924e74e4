from collections.abc import Collection

import pytest

from accel_backends.checkpoint_formats.choosing import FORMATS, format_called, format_of
from accel_backends.checkpoint_formats.full import FullFormat
from accel_state.errors import CheckpointError, UnknownNameError


class ZipFormat(FullFormat):
    name = "zip"

    def model_numbers(self, names: Collection[str]) -> list[int]:
        return [index for index in range(9) if f"model_{index}.zip" in names]


def test_a_format_is_known_by_name_and_by_its_files():
    assert format_called("full").name == "full"
    assert format_of(["model_1.safetensors", "optimizer.bin"], index=1).name == "full"


def test_a_third_party_adds_a_format():
    FORMATS.register("zip", ZipFormat)
    try:
        assert type(format_called("zip")) is ZipFormat
        assert type(format_of(["model.safetensors", "model_1.zip"], index=1)) is ZipFormat
        assert type(format_of(["model.safetensors", "model_1.zip"], index=0)) is FullFormat
    finally:
        FORMATS.unregister("zip")


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown checkpoint format `zip`. Known: .*full"):
        format_called("zip")


def test_files_that_no_format_recognises_are_refused():
    with pytest.raises(
        CheckpointError, match=r"No file of model 1 .*\(.*full, megatron, per_rank, sharded\)"
    ):
        format_of(["model.safetensors"], index=1)
