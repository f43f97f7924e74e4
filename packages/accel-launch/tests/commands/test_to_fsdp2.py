from __future__ import annotations

import pytest

from accel_launch.cli import main
from accel_launch.config.file import read_config

OLD = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_use_orig_params: true\n"


@pytest.fixture
def old(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


@pytest.mark.parametrize("name", ["new.yaml", "new.json"])
def test_a_new_file_is_written_and_what_was_dropped_is_told(old, capsys, name):
    new = old.with_name(name)
    assert main(["to-fsdp2", "--config_file", str(old), "--output_file", str(new)]) == 0
    told = capsys.readouterr()
    assert f"saved at `{new}`." in told.out
    assert "`fsdp_config.fsdp_use_orig_params` is dropped" in told.err
    values = read_config(new).values
    assert (values["fsdp_config.fsdp_version"], values["fsdp_config.fsdp_reshard_after_forward"]) == (
        2,
        False,
    )
    assert old.read_text() == OLD


def test_the_file_itself_is_replaced_on_demand(old):
    assert main(["to-fsdp2", "--config_file", str(old), "--overwrite"]) == 0
    assert read_config(old).values["fsdp_config.fsdp_version"] == 2


def test_the_users_own_file_is_converted_where_none_is_named(old, tmp_path):
    own = tmp_path / "hf_home" / "accelerate" / "default_config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(OLD)
    assert main(["to-fsdp2", "--overwrite"]) == 0
    assert read_config(own).values["fsdp_config.fsdp_version"] == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config_file", "old.yaml"], "Say where to write: `--output_file FILE`, or `--overwrite`"),
        (["--config_file", "old.yaml", "--output_file", "there.yaml"], "`there.yaml` exists already"),
        (["--config_file", "missing.yaml", "--overwrite"], "`missing.yaml` does not exist"),
        (["--overwrite"], "There is no config file to convert"),
    ],
)
def test_nothing_is_written_that_nobody_asked_for(old, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(old.parent)
    there = old.with_name("there.yaml")
    there.write_text("kept")
    assert main(["to-fsdp2", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert (old.read_text(), there.read_text()) == (OLD, "kept")


def test_a_file_that_is_there_is_replaced_on_demand(old):
    there = old.with_name("there.yaml")
    there.write_text("kept")
    arguments = ["--config_file", str(old), "--output_file", str(there), "--overwrite"]
    assert main(["to-fsdp2", *arguments]) == 0
    assert read_config(there).values["fsdp_config.fsdp_version"] == 2
    assert old.read_text() == OLD


def test_a_file_of_version_2_is_left_alone(old, capsys):
    old.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    before = old.read_text()
    assert main(["to-fsdp2", "--config_file", str(old), "--overwrite"]) == 0
    assert "for version 2 already; nothing was written" in capsys.readouterr().out
    assert old.read_text() == before
