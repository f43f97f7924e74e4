from collections.abc import Collection

import pytest

from accel_backends.checkpoint_formats.choosing import FORMATS, format_called, formats_of_models
from accel_backends.checkpoint_formats.full import FullFormat
from accel_state.errors import UnknownNameError


class ZipFormat(FullFormat):
    name = "zip"

    def model_numbers(self, names: Collection[str]) -> list[int]:
        return [index for index in range(9) if f"model_{index}.zip" in names]


def test_a_format_is_known_by_name_and_by_its_files():
    assert format_called("full").name == "full"
    assert {
        n: one.name for n, one in formats_of_models(["model_1.safetensors", "optimizer.bin"]).items()
    } == {1: "full"}


def test_a_third_party_adds_a_format():
    FORMATS.register("zip", ZipFormat)
    try:
        assert type(format_called("zip")) is ZipFormat
        formats = formats_of_models(["model.safetensors", "model_1.zip"])
        assert {n: type(one) for n, one in formats.items()} == {0: FullFormat, 1: ZipFormat}
    finally:
        FORMATS.unregister("zip")


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown checkpoint format `zip`. Known: .*full"):
        format_called("zip")


def test_files_that_no_format_recognizes_are_of_no_model():
    assert formats_of_models(["model.zip", "notes.txt"]) == {}
