"""Settings of the kinds of model parallelism."""

import pytest

from accel_state.errors import ConfigError
from accel_state.parallelism_handlers import (
    DeepSpeedSequenceParallelConfig,
    PipelineParallelConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)


def test_what_is_not_specified_comes_from_the_environment(monkeypatch):
    assert TorchContextParallelConfig().cp_comm_strategy == "allgather"
    monkeypatch.setenv("PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall")
    assert TorchContextParallelConfig().cp_comm_strategy == "alltoall"
    assert TorchContextParallelConfig("allgather").cp_comm_strategy == "allgather"
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH", "512")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "false")
    monkeypatch.setenv("PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION", "flash_attention_2")
    assert DeepSpeedSequenceParallelConfig() == DeepSpeedSequenceParallelConfig(
        512, False, "flash_attention_2"
    )
    assert DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=True).sp_seq_length_is_variable


def test_what_has_no_effect_is_refused():
    assert not TorchTensorParallelConfig().enable_async_tp
    with pytest.raises(ConfigError, match="`enable_async_tp` has no effect yet"):
        TorchTensorParallelConfig(enable_async_tp=True)


def test_wrong_values_are_refused():
    with pytest.raises(
        ConfigError, match="`cp_comm_strategy` must be one of allgather, alltoall, got `ring`"
    ):
        TorchContextParallelConfig("ring")
    with pytest.raises(
        ConfigError, match="`sp_attn_implementation` must be one of flash_attention_2,.* got `eager`"
    ):
        DeepSpeedSequenceParallelConfig(sp_attn_implementation="eager")
    with pytest.raises(
        ConfigError, match="`sp_seq_length` is needed if `sp_seq_length_is_variable` is False"
    ):
        DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=False)


def test_a_pipeline_has_a_known_schedule_and_at_least_one_micro_batch():
    assert PipelineParallelConfig().schedule == "1f1b"
    with pytest.raises(ConfigError, match="`schedule` must be one of gpipe, 1f1b, .*, got `pipedream`"):
        PipelineParallelConfig("pipedream")
    with pytest.raises(ConfigError, match="`num_micro_batches` must be at least 1, got 0"):
        PipelineParallelConfig(num_micro_batches=0)
    assert PipelineParallelConfig("interleaved_1f1b").stages_per_rank == 2
    for schedule, number, fitting in (("1f1b", 2, "interleaved_1f1b"), ("interleaved_1f1b", 1, "1f1b")):
        with pytest.raises(
            ConfigError, match=f"`{schedule}` is not for {number} stages.*schedule='{fitting}'"
        ):
            PipelineParallelConfig(schedule, stages_per_rank=number)


def test_a_pipeline_reads_what_it_is_not_given(monkeypatch):
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_SCHEDULE", "interleaved_1f1b")
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_NUM_MICRO_BATCHES", "6")
    monkeypatch.setenv("PARALLELISM_CONFIG_PP_STAGES_PER_RANK", "3")
    read = PipelineParallelConfig()
    assert (read.schedule, read.num_micro_batches, read.stages_per_rank) == ("interleaved_1f1b", 6, 3)
    assert PipelineParallelConfig("gpipe", 2, stages_per_rank=1).schedule == "gpipe"
