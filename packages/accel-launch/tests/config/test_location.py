from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.config.location import config_folder, default_config_file


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"}, "/hf/accelerate"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/accelerate"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": ""}, "~/.cache/huggingface/accelerate"),
        ({"HF_HOME": "~/hf"}, "~/hf/accelerate"),
    ],
)
def test_the_folder_follows_the_documented_order(environ, folder):
    assert config_folder(environ) == Path(folder).expanduser()


def test_yaml_is_taken_before_json_and_nothing_is_none(tmp_path):
    environ = {"HF_HOME": str(tmp_path)}
    assert default_config_file(environ) is None
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "default_config.json").write_text("{}")
    assert default_config_file(environ) == folder / "default_config.json"
    (folder / "default_config.yaml").write_text("")
    assert default_config_file(environ) == folder / "default_config.yaml"
