from __future__ import annotations

import pytest

from accel_launch.config.basic import basic_values, location_of, write_basic_config
from accel_launch.config.file import read_config
from accel_launch.machine import Accelerators
from accel_state.errors import ConfigError


def test_it_goes_to_the_users_own_place_and_never_over_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    path = write_basic_config("bf16")
    assert path == tmp_path / "accelerate" / "default_config.yaml"
    assert read_config(path).values["mixed_precision"] == "bf16"
    assert write_basic_config() is False
    assert "it is left as it is" in capsys.readouterr().out
    assert read_config(path).values["mixed_precision"] == "bf16"


def test_it_goes_where_it_is_sent(tmp_path):
    path = write_basic_config(save_location=str(tmp_path / "c.json"))
    assert path == tmp_path / "c.json"
    assert read_config(path).values["num_machines"] == 1


def test_a_folder_is_no_config_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        write_basic_config(save_location=str(tmp_path))


def test_a_wrong_precision_writes_nothing(tmp_path):
    with pytest.raises(ConfigError, match="`mixed_precision` is `fp12`"):
        write_basic_config("fp12", str(tmp_path / "c.yaml"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("accelerators", "kind", "num_processes", "use_cpu"),
    [
        (Accelerators(), "NO", 1, True),
        (Accelerators("nvidia", ("0",)), "NO", 1, False),
        (Accelerators("nvidia", ("0", "1", "2", "3")), "MULTI_GPU", 4, False),
        (Accelerators("npu", ("0", "1"), "ASCEND_RT_VISIBLE_DEVICES", "MULTI_NPU"), "MULTI_NPU", 2, False),
    ],
    ids=["no_gpu", "one_gpu", "four_gpus", "two_npus"],
)
def test_it_suits_the_machine(accelerators, kind, num_processes, use_cpu):
    values = basic_values("no", accelerators)
    assert (values["distributed_type"], values["num_processes"], values["use_cpu"]) == (
        kind,
        num_processes,
        use_cpu,
    )


def test_location(tmp_path):
    assert location_of("~/c.yaml", environ={}).is_absolute()
    assert (
        location_of(None, environ={"HF_HOME": str(tmp_path)})
        == tmp_path / "accelerate" / "default_config.yaml"
    )
