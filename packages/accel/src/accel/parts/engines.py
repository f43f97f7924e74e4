"""Which engine trains, and where this process stands in its mesh; `AcceleratorState` answers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from accel_backends import Precision
from accel_state import AcceleratorState, current_runtime
from accel_state.enums import FP8BackendType

if TYPE_CHECKING:
    from accel_state import ParallelismConfig


class EngineFacts:
    """What users' code and libraries ask about the engine."""

    state: AcceleratorState
    _precision: Precision

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """How the processes are split over the axes of parallelism, where that was asked for."""
        return self.state.parallelism_config

    @property
    def torch_device_mesh(self) -> DeviceMesh | None:
        """The mesh over all processes, None where no `parallelism_config` was given."""
        return self.state.device_mesh

    @property
    def data_parallel_rank(self) -> int:
        """Which full copy of the model this process belongs to."""
        return self._coordinate("dp_replicate")

    @property
    def data_parallel_shard_rank(self) -> int:
        """Which shard of the parameters this process holds, among those that see different batches."""
        return self._coordinate("dp_shard")

    @property
    def tensor_parallel_rank(self) -> int:
        """Which part of each layer this process computes; 0 where layers are not shared."""
        return self._coordinate("tp")

    @property
    def context_parallel_rank(self) -> int:
        """Which part of each sequence this process reads; 0 where sequences are not shared."""
        return self._coordinate("cp")

    @property
    def pipeline_parallel_rank(self) -> int:
        """Which stage of the model this process runs; 0 where there is one stage."""
        return self._coordinate("pp")

    def _coordinate(self, axis: str) -> int:
        return current_runtime().layout.coordinate(self.state.process_index)[axis]

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP of the second version."""
        return self.state.is_fsdp2

    @property
    def is_composable_parallelism_enabled(self) -> bool:
        """Whether the engine composes with other axes of parallelism on one mesh."""
        return self.is_fsdp2

    @property
    def deepspeed_plugin(self) -> Any:
        """The DeepSpeed plugin that is selected, None without DeepSpeed."""
        return self.state.deepspeed_plugin

    @property
    def fp8_backend(self) -> FP8BackendType:
        """Which library does the 8-bit arithmetic; `NO` in the precisions that have none."""
        return FP8BackendType(getattr(self._precision, "fp8_backend", FP8BackendType.NO))

    def maybe_context_parallel(
        self,
        buffers: Sequence[Tensor] | None = None,
        buffer_seq_dims: Sequence[int] | None = None,
        no_restore_buffers: Set[Tensor] | None = None,
    ) -> AbstractContextManager[None]:
        """Share the sequences in `buffers` between ranks in the block, where the run has an axis `cp`.

        No strategy here serves that axis yet, and a run that asks for it is refused when it is built: the
        block is as if it were not there.

        Args:
            buffers: Tensors that hold whole sequences.
            buffer_seq_dims: Dimension of the sequence in each.
            no_restore_buffers: Those that need not be whole again after the block.
        """
        return nullcontext()

    def deepspeed_ulysses_dl_adapter(self, dl: Any, model: nn.Module) -> Any:
        """Make a loader give each rank its part of the sequences, where DeepSpeed shares them; else return it.

        Args:
            dl: A prepared loader.
            model: The prepared model.
        """
        return dl
