from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from accel_launch.cli import main
from accel_launch.commands.to_fsdp2 import convert_config_to_fsdp2, to_version_2
from accel_launch.config.file import ConfigFile, read_config
from accel_state.errors import ConfigError

PEER_FILES = Path(__file__).parents[1] / "config" / "peer_files"
RESHARD = "fsdp_config.fsdp_reshard_after_forward"
TYPE = "fsdp_config.fsdp_state_dict_type"


def convert(**values):
    """Convert a file with these keys, those of FSDP without their section."""
    own = ("num_machines", "num_processes", "mixed_precision", "distributed_type")
    flat = {key if key in own else f"fsdp_config.fsdp_{key}": value for key, value in values.items()}
    return to_version_2(ConfigFile(Path("config.yaml"), {"distributed_type": "FSDP", **flat}))


@pytest.mark.parametrize(
    ("key", "given", "expected"),
    [
        ("sharding_strategy", "FULL_SHARD", True),
        ("sharding_strategy", 1, True),
        ("sharding_strategy", "SHARD_GRAD_OP", False),
        ("sharding_strategy", "2", False),
        ("reshard_after_forward", "SHARD_GRAD_OP", False),
    ],
)
def test_the_strategy_becomes_whether_units_are_resharded(key, given, expected):
    converted = convert(**{key: given})
    assert converted.values["fsdp_config.fsdp_version"] == 2
    assert converted.values[RESHARD] is expected
    assert "fsdp_config.fsdp_sharding_strategy" not in converted.values


def test_a_file_without_a_strategy_means_full_shard():
    assert convert(offload_params=True).values[RESHARD] is True


@pytest.mark.parametrize(("strategy", "resharding"), [("HYBRID_SHARD", True), ("HYBRID_SHARD_ZERO2", False)])
def test_hybrid_strategies_become_sizes_of_the_mesh(strategy, resharding):
    converted = convert(sharding_strategy=strategy, num_machines=2, num_processes=16)
    assert converted.values[RESHARD] is resharding
    assert converted.values["parallelism_config.parallelism_config_dp_replicate_size"] == 2
    assert converted.values["parallelism_config.parallelism_config_dp_shard_size"] == 8
    assert any("ParallelismConfig(dp_replicate_size=2, dp_shard_size=8)" in note for note in converted.notes)


def test_a_hybrid_strategy_on_one_machine_has_one_copy():
    converted = convert(sharding_strategy="HYBRID_SHARD", num_processes=8)
    assert converted.values[RESHARD] is True
    assert not any(key.startswith("parallelism_config") for key in converted.values)
    assert any("on one machine is one copy" in note for note in converted.notes)


@pytest.mark.parametrize("num_processes", [None, -1, 7])
def test_a_hybrid_strategy_needs_the_number_of_processes(num_processes):
    with pytest.raises(ConfigError, match="`num_processes` in `config.yaml` must be a multiple of 2"):
        convert(sharding_strategy="HYBRID_SHARD", num_machines=2, num_processes=num_processes)


def test_not_to_shard_is_refused():
    with pytest.raises(ConfigError, match="`NO_SHARD` is not one of its strategies"):
        convert(sharding_strategy="NO_SHARD")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("backward_prefetch_policy", "BACKWARD_PRE"),
        ("forward_prefetch", True),
        ("sync_module_states", True),
        ("use_orig_params", False),
    ],
)
def test_what_version_2_does_without_is_dropped_and_reported(key, value):
    converted = convert(**{key: value})
    assert f"fsdp_config.fsdp_{key}" not in converted.values
    assert [
        note for note in converted.notes if note.startswith(f"`fsdp_config.fsdp_{key}` is dropped: version 2")
    ]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "FULL_STATE_DICT"),
        ({"state_dict_type": "FULL_STATE_DICT"}, "FULL_STATE_DICT"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "SHARDED_STATE_DICT"),
        ({"state_dict_type": "LOCAL_STATE_DICT"}, "SHARDED_STATE_DICT"),
        ({"state_dict_type": 2}, "SHARDED_STATE_DICT"),
    ],
)
def test_checkpoints_are_written_as_before_where_version_2_can(given, expected):
    assert convert(**given).values[TYPE] == expected


def test_everything_else_is_carried_over():
    converted = convert(mixed_precision="bf16", offload_params=True, auto_wrap_policy="NO_WRAP")
    assert converted.values["mixed_precision"] == "bf16"
    assert converted.values["fsdp_config.fsdp_offload_params"] is True
    assert converted.values["fsdp_config.fsdp_auto_wrap_policy"] == "NO_WRAP"


def test_a_file_of_version_2_needs_nothing():
    assert convert(version=2) is None
    assert convert(version="2") is None


def test_a_file_without_fsdp_is_refused():
    with pytest.raises(ConfigError, match="`config.yaml` has no FSDP settings"):
        convert(distributed_type="MULTI_GPU")


@pytest.mark.parametrize("name", ["fsdp1", "fsdp_guide"])
def test_files_of_accelerate_make_a_run_of_version_2_without_a_warning(request_for, name):
    from accel_launch.unused_settings import unused_settings

    converted = to_version_2(read_config(PEER_FILES / f"{name}.yaml"))
    request = request_for(config=converted.values)
    assert unused_settings(request) == []
    variables = {key for key in request.environ() if key.startswith("FSDP_")}
    assert request.environ()["FSDP_VERSION"] == "2"
    assert variables.isdisjoint({"FSDP_SHARDING_STRATEGY", "FSDP_BACKWARD_PREFETCH", "FSDP_USE_ORIG_PARAMS"})


OLD = "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n  fsdp_use_orig_params: true\n"


@pytest.fixture
def old(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


@pytest.mark.parametrize("name", ["new.yaml", "new.json"])
def test_a_new_file_is_written_and_what_was_dropped_is_reported(old, capsys, name):
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


@pytest.mark.parametrize("name", ["new.yaml", "new.json"])
def test_nothing_outside_the_section_is_changed(old, name):
    others = "dynamo_backend: INDUCTOR\nenv: [A=1]\nfp16: true\nnum_processes: -1\ndowncast_bf16: false\ndebug: null\n"
    old.write_text(OLD + others)
    new = old.with_name(name)
    assert main(["to-fsdp2", "--config_file", str(old), "--output_file", str(new)]) == 0
    before, after = (yaml.safe_load(path.read_text()) for path in (old, new))
    assert after.pop("fsdp_config") == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": False,
        "fsdp_state_dict_type": "FULL_STATE_DICT",
    }
    del before["fsdp_config"]
    assert after == before


def test_the_file_is_replaced_on_demand(old):
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
        (
            ["--config_file", "old.yaml"],
            "The file to write is missing. Give `--output_file FILE`, or `--overwrite`",
        ),
        (["--config_file", "old.yaml", "--output_file", "there.yaml"], "`there.yaml` exists already"),
        (["--config_file", "missing.yaml", "--overwrite"], "`missing.yaml` does not exist"),
        (["--overwrite"], "There is no config file to convert"),
    ],
)
def test_nothing_is_written_without_a_request(old, monkeypatch, capsys, arguments, message):
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


def test_a_file_of_version_2_is_left_unchanged(old, capsys):
    old.write_text("distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\n")
    before = old.read_text()
    assert main(["to-fsdp2", "--config_file", str(old), "--overwrite"]) == 0
    assert "for version 2 already; nothing was written" in capsys.readouterr().out
    assert old.read_text() == before


def test_the_content_of_a_file_is_converted_and_unknown_keys_are_kept():
    section = {"fsdp_backward_prefetch": "BACKWARD_PRE", "fsdp_use_orig_params": True, "fsdp_later": 5}
    converted = convert_config_to_fsdp2({"debug": True, "fsdp_config": section})
    assert converted["debug"] is True
    assert converted["fsdp_config"]["fsdp_version"] == 2
    assert converted["fsdp_config"]["fsdp_later"] == 5
    assert not {"fsdp_backward_prefetch", "fsdp_use_orig_params"} & converted["fsdp_config"].keys()
    assert convert_config_to_fsdp2(converted) == converted
