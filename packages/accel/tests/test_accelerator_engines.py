import json
import subprocess
import sys

import pytest
import torch

from accel import Accelerator, FullyShardedDataParallelPlugin, ParallelismConfig
from accel_backends import TorchTensorParallelPlugin
from accel_state.enums import DistributedType, FP8BackendType
from accel_state.environment import environ, patch_environment
from accel_state.errors import ConfigError, StateError

pytestmark = pytest.mark.usefixtures("fresh_state")


def places(**sizes):
    accelerator = Accelerator(cpu=True, parallelism_config=ParallelismConfig(**sizes) if sizes else None)
    mesh = accelerator.torch_device_mesh
    return (
        None if mesh is None else tuple(mesh.mesh_dim_names),
        accelerator.data_parallel_rank,
        [
            accelerator.data_parallel_shard_rank,
            accelerator.tensor_parallel_rank,
            accelerator.context_parallel_rank,
            accelerator.pipeline_parallel_rank,
        ],
    )


@pytest.mark.parametrize(("sizes", "axes"), [({}, None), ({"dp_replicate_size": 2}, ("dp_replicate",))])
def test_data_parallel_ranks_are_distinguished_and_other_axes_are_off(world, sizes, axes):
    assert world(2).run(places, **sizes) == [(axes, 0, [0] * 4), (axes, 1, [0] * 4)]


def test_axes_that_data_parallelism_does_not_serve_are_refused(world):
    with pytest.raises(Exception, match="`dp_shard_size` above 1, which the strategy `ddp` does not do"):
        world(2).run(places, dp_shard_size=2)


def test_sequences_are_not_shared_by_an_engine_that_does_not_train(world):
    with pytest.raises(
        Exception, match='`sp_backend` .* is `deepspeed`, but .* by `torch`. Pass `sp_backend="torch"`'
    ):
        world(2).run(places, sp_size=2)


def test_without_an_engine_there_is_nothing_to_report():
    accelerator = Accelerator(cpu=True)
    assert accelerator.deepspeed_plugin is None
    assert not accelerator.is_fsdp2
    assert not accelerator.is_composable_parallelism_enabled
    assert accelerator.fp8_backend == FP8BackendType.NO
    loader = [1]
    assert accelerator.deepspeed_ulysses_dl_adapter(loader, torch.nn.Linear(1, 1)) is loader
    with accelerator.maybe_context_parallel(buffers=[torch.ones(2)], buffer_seq_dims=[0]) as nothing:
        assert nothing is None


def test_a_mesh_of_another_size_is_refused():
    with pytest.raises(ConfigError, match="is for 2 processes, but there are 1"):
        Accelerator(cpu=True, parallelism_config=ParallelismConfig(dp_replicate_size=2))
    assert torch.device("cpu") == Accelerator(cpu=True).device


def sharding(variables=None, *, passes_plugin=False, **arguments):
    """Build an `Accelerator` as a script would, prepare a model, and return what came of it."""
    with patch_environment(**(variables or {})):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if passes_plugin else None
        accelerator = Accelerator(cpu=True, fsdp_plugin=plugin, **arguments)
        model = accelerator.prepare(torch.nn.Linear(4, 4))
        placements = [str(parameter.placements) for parameter in model.parameters()]
        again = Accelerator(cpu=True)
    return (
        accelerator.distributed_type,
        accelerator.is_fsdp2,
        accelerator.strategy.name,
        again.strategy.name,
        accelerator.state.fsdp_plugin.fsdp_version,
        placements,
    )


SHARDED = (DistributedType.FSDP, True, "fsdp2", "fsdp2", 2, ["(Shard(dim=0),)"] * 2)
LAUNCHED = {"accelerate_use_fsdp": "true", "fsdp_version": "2"}


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("is_launched", [False, True])
def test_fsdp_shards_on_cpus_whether_the_script_or_the_launcher_requests_it(world, num_ranks, is_launched):
    found = world(num_ranks).run(sharding, LAUNCHED if is_launched else None, passes_plugin=not is_launched)
    assert found == [SHARDED] * num_ranks


def test_fsdp_shards_where_a_parallelism_config_gives_no_sizes(world):
    found = world(2).run(sharding, {**LAUNCHED, "accelerate_use_parallelism_config": "true"})
    assert found == [SHARDED] * 2


def settings_of_plugin(variables):
    with patch_environment(**variables):
        plugin = Accelerator(cpu=True).state.fsdp_plugin
    return plugin.reshard_after_forward, plugin.state_dict_type.name, plugin.wrap_policy_name


def test_the_settings_of_the_launcher_reach_the_plugin(world):
    variables = {
        **LAUNCHED,
        "fsdp_reshard_after_forward": "false",
        "fsdp_state_dict_type": "FULL_STATE_DICT",
        "fsdp_auto_wrap_policy": "NO_WRAP",
    }
    assert world(1).run(settings_of_plugin, variables) == [(False, "FULL_STATE_DICT", "NO_WRAP")]


def test_a_wrong_setting_of_the_launcher_is_an_error_at_construction():
    with (
        patch_environment(**LAUNCHED, fsdp_state_dict_type="LOCAL_STATE_DICT"),
        pytest.raises(ConfigError, match="is not written any more"),
    ):
        Accelerator(cpu=True)


def test_a_plugin_after_a_run_without_one_is_refused():
    Accelerator(cpu=True)
    with pytest.raises(StateError, match="`fsdp_plugin` requests .* was built with `None` already"):
        Accelerator(cpu=True, fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2))


def variables_for_loading():
    with patch_environment(accelerate_use_fsdp=None, fsdp_cpu_ram_efficient_loading=None):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=True)
        before = environ.read("fsdp_cpu_ram_efficient_loading")
        Accelerator(cpu=True, fsdp_plugin=plugin)
        return before, environ.read("use_fsdp"), environ.read("fsdp_cpu_ram_efficient_loading")


def test_libraries_see_that_only_rank_0_needs_weights(world):
    assert world(2).run(variables_for_loading) == [(False, True, True)] * 2


def with_tensor_parallelism():
    accelerator = Accelerator(cpu=True, torch_tp_plugin=TorchTensorParallelPlugin(tp_size=2))
    return accelerator.strategy.name, accelerator.torch_device_mesh["tp"].size()


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_tensor_parallelism_of_the_older_plugin_is_an_axis_of_the_mesh(world):
    assert world(2).run(with_tensor_parallelism) == [("fsdp2", 2)] * 2


FP16 = """
import json, math, sys
import torch
from torch import nn
from accel import Accelerator, DeepSpeedPlugin

fp16 = {"enabled": True, "initial_scale_power": 8, "hysteresis": 1}
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": int(sys.argv[1])}, "fp16": fp16}
plugin = DeepSpeedPlugin(hf_ds_config={**config, "zero_allow_untested_optimizer": True})
accelerator = Accelerator(mixed_precision="fp16", deepspeed_plugin=plugin)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
inputs, losses, skipped = torch.randn(4, 64, device=accelerator.device), [], []
for step in range(12):
    loss = (model(inputs.half()).float() - inputs).square().mean()
    accelerator.backward(loss * (math.inf if step == 3 else 1.0))
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    skipped.append(accelerator.optimizer_step_was_skipped)
print("RESULT", json.dumps([losses, skipped]))
accelerator.end_training()
"""


@pytest.mark.gpu
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_in_fp16_skips_a_step_that_overflows_and_trains_on(stage):
    pytest.importorskip("deepspeed", reason="needs DeepSpeed")
    # DeepSpeed keeps the group of its first run for the life of the process.
    command = [sys.executable, "-c", FP16, str(stage)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    losses, skipped = json.loads(line.removeprefix("RESULT "))
    assert losses[-1] < losses[0]
    assert skipped[3]
    assert not all(skipped)
