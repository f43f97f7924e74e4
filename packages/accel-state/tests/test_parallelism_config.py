"""`ParallelismConfig`: sizes, names of axes, and the mesh on four processes."""

import json

import pytest
import torch
import torch.distributed as dist

from accel_state.errors import ConfigError, StateError
from accel_state.parallelism_config import (
    DeepSpeedSequenceParallelConfig,
    ParallelismConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)


def test_nothing_said_is_one_process():
    config = ParallelismConfig()
    assert config.total_size == config.data_parallel_size == config.non_data_parallel_size == 1
    assert config.active_mesh_dims == config.fsdp_dim_names == []
    assert (config.cp_backend, config.sp_backend) == ("torch", "deepspeed")
    assert (config.tp_handler, config.cp_handler, config.sp_handler) == (None, None, None)
    assert config.build_device_mesh("cpu") is None


def test_sizes_come_from_the_environment_and_arguments_win(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_DP_SHARD_SIZE", "4")
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "2")
    assert ParallelismConfig().total_size == 8
    assert ParallelismConfig(tp_size=1, dp_replicate_size=3).total_size == 12


def test_everything_at_once():
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=3, cp_size=5, tp_size=7)
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (210, 6, 35)
    assert config.active_mesh_dims == ["dp_replicate", "dp_shard", "cp", "tp"]
    assert config.dp_dim_names == ["dp_replicate", "dp_shard"]
    assert config.non_dp_dim_names == ["cp", "tp"]
    assert config.dp_shard_cp_dim_names == ["dp_shard", "cp"]
    assert config.dp_cp_dim_names == ["dp_replicate", "dp_shard", "cp"]
    assert config.fsdp_dim_names == ["dp_replicate", "dp_shard_cp"]
    assert config.dp_replicate_enabled
    assert config.dp_shard_enabled
    assert config.cp_enabled
    assert config.tp_enabled
    assert not config.sp_enabled
    assert config.tp_handler == TorchTensorParallelConfig()
    assert config.cp_handler == TorchContextParallelConfig()


def test_replicas_alone_give_fsdp_no_shards():
    assert ParallelismConfig(dp_replicate_size=2).fsdp_dim_names == ["dp_replicate"]
    assert ParallelismConfig(cp_size=2).fsdp_dim_names == ["dp_shard_cp"]


def test_json_holds_sizes_and_handlers():
    config = ParallelismConfig(sp_size=2, sp_handler=DeepSpeedSequenceParallelConfig(128, False, "sdpa"))
    values = json.loads(json.dumps(config.to_json()))
    assert (values["sp_size"], values["tp_size"], values["tp_handler"]) == (2, 1, None)
    assert values["sp_handler"] == {
        "sp_seq_length": 128,
        "sp_seq_length_is_variable": False,
        "sp_attn_implementation": "sdpa",
    }
    assert "device_mesh" not in values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp_size": 0}, "`tp_size` must be a whole number of at least 1, got 0"),
        ({"dp_shard_size": -1}, "`dp_shard_size` must be .* got -1"),
        ({"cp_size": True}, "`cp_size` must be .* got True"),
        ({"cp_size": 2.0}, "`cp_size` must be .* got 2.0"),
        ({"cp_size": 2, "sp_size": 2}, "`cp_size` .2. and `sp_size` .2. are two ways to share a sequence"),
        ({"cp_backend": "ring"}, "`cp_backend` must be one of torch, got `ring`"),
        ({"sp_backend": "torch"}, "`sp_backend` must be one of deepspeed, got `torch`"),
        ({"tp_handler": TorchTensorParallelConfig()}, "`tp_handler` has no effect while `tp_size` is 1"),
        (
            {"tp_size": 2, "tp_handler": TorchContextParallelConfig()},
            "`tp_handler` must be a `TorchTensorParallelConfig`, got `TorchContextParallelConfig`",
        ),
    ],
)
def test_wrong_values_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ParallelismConfig(**arguments)


def test_mesh_of_another_size_is_refused():
    with pytest.raises(
        ConfigError,
        match="dp_shard_size=1, cp_size=1, sp_size=1, tp_size=2. is for 2 processes, but there are 1",
    ):
        ParallelismConfig(tp_size=2).get_device_mesh("cpu")


def test_mesh_that_was_not_built_cannot_be_asked_for():
    with pytest.raises(StateError, match="has not been built"):
        ParallelismConfig(tp_size=2).get_device_mesh()


def axes_of(arguments, *names):
    """Return for each name the ranks that share the axis with this one."""
    config = ParallelismConfig(**arguments)
    mesh = config.get_device_mesh("cpu")
    assert config.get_device_mesh() is config.get_device_mesh("cpu") is mesh
    with pytest.raises(StateError, match="was built for `cpu`, but `cuda` is asked for"):
        config.get_device_mesh("cuda")
    for name in names:
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh[name].get_group())
        assert total.item() == mesh[name].size()
    return {name: mesh[name].mesh.tolist() for name in names}


def test_mesh_on_four_processes_puts_neighbours_on_the_inner_axis(world):
    arguments = {"dp_shard_size": 2, "tp_size": 2}
    seen = world(4).run(axes_of, arguments, "dp_shard", "tp", "dp", "dp_shard_cp", "dp_cp")
    assert [rank["tp"] for rank in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    for name in ("dp_shard", "dp", "dp_shard_cp", "dp_cp"):
        assert [rank[name] for rank in seen] == [[0, 2], [1, 3], [0, 2], [1, 3]]


def test_unions_of_axes_span_them(world):
    seen = world(4).run(
        axes_of, {"dp_replicate_size": 2, "cp_size": 2}, "dp_replicate", "cp", "dp", "dp_shard_cp", "dp_cp"
    )
    assert [rank["dp_cp"] for rank in seen] == [[0, 1, 2, 3]] * 4
    assert [rank["dp"] for rank in seen] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert (
        [rank["dp_shard_cp"] for rank in seen]
        == [rank["cp"] for rank in seen]
        == [[0, 1], [0, 1], [2, 3], [2, 3]]
    )


def test_mesh_over_sequence_axis(world):
    seen = world(4).run(axes_of, {"dp_shard_size": 2, "sp_size": 2}, "sp", "dp")
    assert [rank["sp"] for rank in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
