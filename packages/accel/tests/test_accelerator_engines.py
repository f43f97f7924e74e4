import pytest
import torch

from accel import Accelerator, ParallelismConfig
from accel_state.enums import FP8BackendType
from accel_state.errors import ConfigError

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
def test_data_parallel_ranks_are_told_apart_and_other_axes_are_off(world, sizes, axes):
    assert world(2).run(places, **sizes) == [(axes, 0, [0] * 4), (axes, 1, [0] * 4)]


@pytest.mark.parametrize("axis", ["dp_shard_size", "tp_size", "cp_size"])
def test_axes_that_data_parallelism_does_not_serve_are_refused(world, axis):
    with pytest.raises(Exception, match=rf"`{axis}` above 1, which the strategy `ddp` does not do"):
        world(2).run(places, **{axis: 2})


def test_without_an_engine_there_is_nothing_to_tell():
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
