"""The process groups of megatron-core, laid out as the run's `MeshLayout` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from accel_backends.plugins.megatron import MegatronLMPlugin
from accel_backends.strategies.megatron.packages import core
from accel_ops import broadcast_object_list
from accel_state.mesh_layout import MeshLayout


def start_groups(layout: MeshLayout, plugin: MegatronLMPlugin) -> None:
    """Make the groups, in place of those of an earlier run of this process. Communicates: all ranks.

    The order of megatron-core, ``tp-cp-ep-dp-pp``, is that of `accel_state.mesh_layout.AXES`.
    """
    end_groups()
    core("parallel_state").initialize_model_parallel(
        tensor_model_parallel_size=layout.tp,
        pipeline_model_parallel_size=layout.pp,
        context_parallel_size=layout.cp,
        expert_model_parallel_size=plugin.expert_model_parallel_size or 1,
        expert_tensor_parallel_size=plugin.expert_tensor_parallel_size,
    )


def end_groups() -> None:
    """Forget the groups, if there are any."""
    state = core("parallel_state")
    if state.model_parallel_is_initialized():
        state.destroy_model_parallel()


def agree_on_seed() -> int:
    """Return the seed of rank 0, on every rank. Communicates: all ranks."""
    (seed,) = broadcast_object_list([torch.initial_seed() % 2**31])
    return int(seed)


@contextmanager
def seeded(seed: int, *, layout: MeshLayout, rank: int) -> Iterator[None]:
    """Draw the values of layers as ranks that share them must: the same numbers, but for what each has a part of.

    The generators of CUDA, which dropout uses, stay seeded so; that of the CPU is as before behind the block.
    """
    own = seed + 100 * layout.index(rank, "pp")
    if torch.cuda.is_available():
        core("tensor_parallel").model_parallel_cuda_manual_seed(own)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(own)
        yield
