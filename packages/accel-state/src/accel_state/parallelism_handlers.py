"""Settings of each kind of model parallelism, in addition to the sizes of the mesh's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from accel_state.environment import read
from accel_state.errors import ConfigError

PipelineSchedule: TypeAlias = Literal["gpipe", "1f1b", "interleaved_1f1b", "zero_bubble"]
CommStrategy: TypeAlias = Literal["allgather", "alltoall"]
AttentionImplementation: TypeAlias = Literal["flash_attention_2", "flash_attention_3", "sdpa"]


@dataclass
class TorchTensorParallelConfig:
    """Tensor parallelism by torch.

    Raises:
        ConfigError: If ``enable_async_tp`` is set, which is not supported yet.
    """

    enable_async_tp: bool = False

    def __post_init__(self) -> None:
        if self.enable_async_tp:
            raise ConfigError("`enable_async_tp` has no effect yet, so it must stay False.")


@dataclass
class TorchContextParallelConfig:
    """Context parallelism.

    Args:
        cp_comm_strategy: How keys and values are exchanged: ``allgather`` keeps the gathered ones for the backward
            pass; ``alltoall`` keeps this rank's, and gathers them again. None reads
            ``PARALLELISM_CONFIG_CP_COMM_STRATEGY``.
        cuts_batches: Prepared loaders shard every sequence over the ranks. Otherwise they yield full sequences on all
            ranks, which `Accelerator.maybe_context_parallel` shards.
        is_balanced: Each rank has a chunk of the head and one of the tail of a sequence, which balances the load of
            causal attention. Otherwise it has one chunk.
        indivisible: How such loaders handle sequences that cannot be divided: ``pad`` them, or raise an error
            (``refuse``).

    Raises:
        ConfigError: If ``indivisible`` or ``cp_comm_strategy`` is unknown.
    """

    cp_comm_strategy: CommStrategy | None = None
    cuts_batches: bool = False
    is_balanced: bool = True
    indivisible: Literal["pad", "refuse"] = "pad"

    def __post_init__(self) -> None:
        check_choice("indivisible", self.indivisible, ("pad", "refuse"))
        _read_missing(self, "", "cp_comm_strategy")
        check_choice("cp_comm_strategy", self.cp_comm_strategy, get_args(CommStrategy))


@dataclass
class DeepSpeedSequenceParallelConfig:
    """Sequence parallelism by DeepSpeed (Ulysses). Fields that are None are read from ``PARALLELISM_CONFIG_SP_*``.

    Args:
        sp_seq_length: The length of all sequences, needed if they do not vary.
        sp_seq_length_is_variable: Whether the length differs from batch to batch.
        sp_attn_implementation: The attention that is parallelized.

    Raises:
        ConfigError: If the attention is unknown, or the length is missing.
    """

    sp_seq_length: int | None = None
    sp_seq_length_is_variable: bool | None = None
    sp_attn_implementation: AttentionImplementation | None = None

    def __post_init__(self) -> None:
        _read_missing(self, "", "sp_seq_length", "sp_seq_length_is_variable", "sp_attn_implementation")
        check_choice("sp_attn_implementation", self.sp_attn_implementation, get_args(AttentionImplementation))
        if not self.sp_seq_length_is_variable and self.sp_seq_length is None:
            raise ConfigError(
                "`sp_seq_length` is needed if `sp_seq_length_is_variable` is False. Pass the length of the sequences."
            )


@dataclass
class PipelineParallelConfig:
    """How batches pass through the stages of a pipeline. ``PARALLELISM_CONFIG_PP_*`` replace fields that are None.

    Args:
        schedule: ``1f1b``, the default: a stage runs backward as soon as it can, and stores the activations of as many
            micro-batches as stages follow it; ``gpipe``: all forward, then all backward; ``interleaved_1f1b``: with
            several stages on each rank, so that ranks wait less and communicate more; ``zero_bubble``: gradients of
            parameters are computed when a rank would wait. All compute the same.
        num_micro_batches: Micro-batches of a batch; None: two per stage. A batch of fewer rows has one per row.
        split_points: The first modules of the stages, from the second on, in the order of the forward pass;
            ``auto``: stages of about the same size.
        stages_per_rank: Stages of each rank, which are interleaved: of two ranks the first has the stages 0 and 2.
            None: two with ``interleaved_1f1b``, else one.

    Raises:
        ConfigError: If there is no such schedule, a number is below 1, or the schedule is for another number of stages.
    """

    schedule: PipelineSchedule | None = None
    num_micro_batches: int | None = None
    split_points: str | Sequence[str] = "auto"
    stages_per_rank: int | None = None

    def __post_init__(self) -> None:
        _read_missing(self, "pp_", "schedule", "num_micro_batches", "stages_per_rank")
        check_choice("schedule", self.schedule, get_args(PipelineSchedule))
        is_interleaved = self.schedule == "interleaved_1f1b"
        if self.stages_per_rank is None:
            self.stages_per_rank = 2 if is_interleaved else 1
        for name in ("num_micro_batches", "stages_per_rank"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"`{name}` must be at least 1, got {number}.")
        if self.schedule != "zero_bubble" and is_interleaved != (self.stages_per_rank > 1):
            fitting = "1f1b" if is_interleaved else "interleaved_1f1b"
            raise ConfigError(
                f"The schedule `{self.schedule}` is not for {self.stages_per_rank} stages on each rank "
                f"(`stages_per_rank`). Choose `schedule='{fitting}'`, or leave `stages_per_rank` out."
            )


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Check that ``value`` is one of ``choices``.

    Raises:
        ConfigError: If it is not.
    """
    if value not in choices:
        raise ConfigError(f"`{name}` must be one of {', '.join(choices)}, got `{value}`.")


def _read_missing(config: object, prefix: str, *fields: str) -> None:
    """Read fields that are None from the environment."""
    for name in fields:
        if getattr(config, name) is None:
            setattr(config, name, read(f"parallelism_{prefix}{name}"))
