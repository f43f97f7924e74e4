import pytest

from accel_backends.checkpoint_formats.choosing import format_called, format_of
from accel_state.errors import CheckpointError, ConfigError


def test_a_format_is_known_by_name_and_by_its_files():
    assert format_called("full").name == "full"
    assert format_of(["model_1.safetensors", "optimizer.bin"], index=1).name == "full"


def test_what_is_not_known_is_named():
    with pytest.raises(ConfigError, match="no checkpoint format `zip`. Known: full"):
        format_called("zip")
    with pytest.raises(CheckpointError, match=r"No file of model 1 .*\(full\)"):
        format_of(["model.safetensors"], index=1)
