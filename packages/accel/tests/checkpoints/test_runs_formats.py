from collections.abc import Collection

import pytest

from accel.checkpoints.runs import saved_formats
from accel_backends.checkpoint_formats.full import FullFormat
from accel_backends.checkpoint_formats.protocol import FORMATS
from accel_state.errors import UnknownNameError


class ZipFormat(FullFormat):
    name = "zip"

    def indexes_in(self, names: Collection[str]) -> tuple[list[int], list[int]]:
        return [index for index in range(9) if f"model_{index}.zip" in names], []


def formats_of(names, *, form=None, saved_as="", num_models=9):
    """Return the formats of models and of optimizers, by index."""
    form = FullFormat() if form is None else form
    saved = saved_formats(names, form=form, saved_as=saved_as, num_models=num_models, num_optimizers=0)
    return [{n: one.name for n, one in each.items()} for each in (saved.models, saved.optimizers)]


def test_a_format_is_known_by_name_and_by_its_files():
    assert FORMATS.get("full").name == "full"
    assert formats_of(["model_1.safetensors", "optimizer.bin"]) == [{1: "full"}, {0: "full"}]


def test_the_format_that_the_manifest_names_comes_first():
    names = ["pytorch_model_fsdp_0/.metadata", "model.safetensors", "optimizer_0/.metadata"]
    assert formats_of(names, saved_as="sharded") == [{0: "sharded"}, {0: "sharded"}]
    assert formats_of(names) == [{0: "full"}, {0: "sharded"}]


def test_other_formats_are_queried_only_for_what_is_missing():
    names = ["pytorch_model_fsdp_0/.metadata", "model_1.safetensors", "optimizer_0/.metadata"]
    assert formats_of(names, num_models=1) == [{1: "full"}, {}]
    assert formats_of(names, num_models=2) == [{0: "sharded", 1: "full"}, {0: "sharded"}]


def test_a_third_party_adds_a_format():
    FORMATS.register("zip", ZipFormat)
    try:
        assert FORMATS.get("zip") is ZipFormat
        assert formats_of(["model.safetensors", "model_1.zip"]) == [{0: "full", 1: "zip"}, {}]
    finally:
        FORMATS.unregister("zip")


def test_an_unknown_name_is_refused():
    with pytest.raises(UnknownNameError, match="Unknown checkpoint format `zip`. Known: .*full"):
        FORMATS.get("zip")


def test_files_that_no_format_recognizes_are_of_no_model():
    assert formats_of(["model.zip", "notes.txt"]) == [{}, {}]


def test_a_checkpoint_of_an_unknown_format_names_it():
    with pytest.raises(UnknownNameError, match="Unknown checkpoint format `zip`"):
        formats_of(["model.zip"], saved_as="zip")
