"""`ParallelismConfig`: sizes, names of axes, and the mesh on four processes."""

import json

import pytest
import torch
import torch.distributed as dist

from accel_state.errors import ConfigError, StateError
from accel_state.mesh_layout import MeshLayout
from accel_state.parallelism_config import (
    DeepSpeedSequenceParallelConfig,
    ParallelismConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)
from tools.harness.scripts import run_script


def test_nothing_specified_is_one_process():
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


def test_replicas_only_give_fsdp_no_shards():
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
        ({"cp_size": 2, "sp_size": 2}, "`cp_size` .2. and `sp_size` .2. are two ways to shard a sequence"),
        (
            {"dp_replicate_size": 2, "tp_size": 2},
            "`tp_size` and `cp_size` above 1 cannot be combined with unsharded replicas .*Shard the replicas",
        ),
        ({"dp_replicate_size": 2, "cp_size": 2}, "cannot be combined with unsharded replicas"),
        ({"tp_size": 2, "ep_size": 3}, r"`ep` must divide .*, which is 2, got 3"),
        ({"cp_backend": "ring"}, "`cp_backend` must be one of torch, got `ring`"),
        ({"sp_backend": "ring"}, "`sp_backend` must be one of deepspeed, torch, got `ring`"),
        (
            {"sp_size": 2, "sp_backend": "torch", "sp_handler": DeepSpeedSequenceParallelConfig()},
            "`sp_handler` has no effect while `sp_backend` is `torch`. Leave it out",
        ),
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


def build_mesh(**sizes):
    ParallelismConfig(**sizes).build_device_mesh("cpu")


def test_mesh_of_another_size_is_refused(world):
    with pytest.raises(
        ConfigError, match="cp_size=1, sp_size=1, tp_size=4. is for 4 processes, but there are 2"
    ):
        world(2).run(build_mesh, tp_size=4)


WITHOUT_A_GROUP = """
from accel_state.parallelism_config import ParallelismConfig

mesh = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2).build_device_mesh("cpu")
assert mesh.mesh_dim_names == ("dp_replicate", "dp_shard")
assert [mesh[name].size() for name in ("dp", "dp_shard_cp", "dp_cp")] == [4, 2, 4]
"""


def test_without_a_process_group_torch_makes_it(tmp_path):
    (tmp_path / "script.py").write_text(WITHOUT_A_GROUP)
    done = run_script(tmp_path / "script.py", num_processes=4)
    assert done.returncode == 0, done.stderr


def test_without_sizes_every_process_is_a_full_copy():
    config = ParallelismConfig()
    config.fit_to(8)
    assert (config.dp_replicate_size, config.layout) == (8, MeshLayout(dp_replicate=8))
    config.fit_to(8)
    with pytest.raises(ConfigError, match="dp_replicate_size=8, .* is for 8 processes, but there are 4"):
        config.fit_to(4)


def test_without_sizes_an_engine_arranges_the_processes():
    config = ParallelismConfig()
    config.fit_to(8, default=MeshLayout(dp_replicate=2, dp_shard=4))
    assert config.layout == MeshLayout(dp_replicate=2, dp_shard=4)
    given = ParallelismConfig(dp_replicate_size=8)
    given.fit_to(8, default=MeshLayout(dp_shard=8))
    assert given.layout == MeshLayout(dp_replicate=8)


def test_stages_and_experts():
    config = ParallelismConfig(pp_size=2, dp_shard_size=2, tp_size=2, ep_size=4)
    assert config.layout == MeshLayout(pp=2, dp_shard=2, tp=2, ep=4)
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (8, 2, 4)
    assert config.active_mesh_dims == ["pp", "dp_shard", "tp"]
    assert config.non_dp_dim_names == ["pp", "tp"]
    assert config._get_mesh() == (("pp", "dp_shard", "tp"), (2, 2, 2))
    assert config.pp_enabled
    assert config.ep_enabled
    assert not ParallelismConfig().pp_enabled
    assert not ParallelismConfig().ep_enabled


def test_only_experts_are_sharded_over_ranks_that_shard_the_rest_of_the_model_too():
    assert ParallelismConfig(ep_size=2).layout == MeshLayout(dp_shard=2, ep=2)


def test_sizes_of_stages_and_experts_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_SIZE", "2")
    monkeypatch.setenv("PARALLELISM_CONFIG_TP_SIZE", "4")
    monkeypatch.setenv("PARALLELISM_CONFIG_EP_SIZE", "4")
    assert ParallelismConfig().layout == MeshLayout(pp=2, tp=4, ep=4)


def test_mesh_that_was_not_built_cannot_be_requested():
    with pytest.raises(StateError, match="has not been built"):
        ParallelismConfig(tp_size=2).get_device_mesh()


def axes_of(arguments, *names):
    """Return for each name the ranks that share the axis with this one."""
    config = ParallelismConfig(**arguments)
    mesh = config.get_device_mesh("cpu")
    assert config.get_device_mesh() is config.get_device_mesh("cpu") is mesh
    with pytest.raises(StateError, match="was built for `cpu`, but `cuda` is requested"):
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
    names = ("dp_shard", "cp", "dp", "dp_shard_cp", "dp_cp", "loss")
    seen = world(4).run(axes_of, {"dp_shard_size": 2, "cp_size": 2}, *names)
    for union in ("dp_shard_cp", "dp_cp", "loss"):
        assert [rank[union] for rank in seen] == [[0, 1, 2, 3]] * 4
    assert [rank["dp"] for rank in seen] == [rank["dp_shard"] for rank in seen] == [[0, 2], [1, 3]] * 2
    assert [rank["cp"] for rank in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]


def test_mesh_over_sequence_axis(world):
    seen = world(4).run(axes_of, {"dp_shard_size": 2, "sp_size": 2}, "sp", "dp")
    assert [rank["sp"] for rank in seen] == [[0, 1], [0, 1], [2, 3], [2, 3]]
