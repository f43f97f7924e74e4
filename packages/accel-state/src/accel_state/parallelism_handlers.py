"""How each kind of model parallelism does its work: the settings beside the sizes of the mesh's axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from accel_state.environment import read
from accel_state.errors import ConfigError

PIPELINE_SCHEDULES = ("gpipe", "1f1b")
COMM_STRATEGIES = ("allgather", "alltoall")
ATTENTION_IMPLEMENTATIONS = ("flash_attention_2", "flash_attention_3", "sdpa")


@dataclass
class TorchTensorParallelConfig:
    """Tensor parallelism by torch.

    Raises:
        ConfigError: If ``enable_async_tp`` is asked for, which no engine here offers yet.
    """

    enable_async_tp: bool = False

    def __post_init__(self) -> None:
        if self.enable_async_tp:
            raise ConfigError("`enable_async_tp` has no effect yet, so it must stay False.")


@dataclass
class TorchContextParallelConfig:
    """Context parallelism by torch.

    Args:
        cp_comm_strategy: How keys and values travel: ``allgather`` (all at once) or ``alltoall`` (in a ring).
            None reads ``PARALLELISM_CONFIG_CP_COMM_STRATEGY``.
    """

    cp_comm_strategy: str | None = None

    def __post_init__(self) -> None:
        self.cp_comm_strategy = _given_or_read(self.cp_comm_strategy, "parallelism_cp_comm_strategy")
        check_choice("cp_comm_strategy", self.cp_comm_strategy, COMM_STRATEGIES)


@dataclass
class DeepSpeedSequenceParallelConfig:
    """Sequence parallelism by DeepSpeed (Ulysses). What is None is read from ``PARALLELISM_CONFIG_SP_*``.

    Args:
        sp_seq_length: The length of all sequences, needed if they do not vary.
        sp_seq_length_is_variable: Whether the length differs from batch to batch.
        sp_attn_implementation: The attention that is parallelised.
    """

    sp_seq_length: int | None = None
    sp_seq_length_is_variable: bool | None = None
    sp_attn_implementation: str | None = None

    def __post_init__(self) -> None:
        self.sp_seq_length = _given_or_read(self.sp_seq_length, "parallelism_sp_seq_length")
        self.sp_seq_length_is_variable = _given_or_read(
            self.sp_seq_length_is_variable, "parallelism_sp_seq_length_is_variable"
        )
        self.sp_attn_implementation = _given_or_read(
            self.sp_attn_implementation, "parallelism_sp_attn_implementation"
        )
        check_choice("sp_attn_implementation", self.sp_attn_implementation, ATTENTION_IMPLEMENTATIONS)
        if not self.sp_seq_length_is_variable and self.sp_seq_length is None:
            raise ConfigError("`sp_seq_length` is needed where `sp_seq_length_is_variable` is False.")


@dataclass
class PipelineParallelConfig:
    """How batches pass through the stages of a pipeline.

    Args:
        schedule: ``1f1b``: a stage goes backward as soon as it can, and holds the activations of as many micro-batches
            as stages follow it; ``gpipe``: all forward, then all backward. Both compute the same.
        num_micro_batches: Parts of a batch that are on their way at once; None: two for each stage. A batch of fewer
            rows has one for each row.
        split_points: The modules with which the stages begin, from the second on, in the order in which the forward
            calls them; ``auto``: stages of about the same size.

    Raises:
        ConfigError: If there is no such schedule, or a number below 1.
    """

    schedule: str = "1f1b"
    num_micro_batches: int | None = None
    split_points: str | Sequence[str] = "auto"

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, PIPELINE_SCHEDULES)
        if self.num_micro_batches is not None and self.num_micro_batches < 1:
            raise ConfigError(f"`num_micro_batches` must be at least 1, got {self.num_micro_batches}.")


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of ``choices``."""
    if value not in choices:
        raise ConfigError(f"`{name}` must be one of {', '.join(choices)}, got `{value}`.")


def _given_or_read(value: Any, setting: str) -> Any:
    return read(setting) if value is None else value
