"""Settings of the kinds of model parallelism."""

import pytest

from accel_state.errors import ConfigError
from accel_state.parallelism_handlers import (
    DeepSpeedSequenceParallelConfig,
    PipelineParallelConfig,
    TorchContextParallelConfig,
    TorchTensorParallelConfig,
)


def test_what_is_not_said_comes_from_the_environment(monkeypatch):
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
        ConfigError, match="`sp_seq_length` is needed where `sp_seq_length_is_variable` is False"
    ):
        DeepSpeedSequenceParallelConfig(sp_seq_length_is_variable=False)


def test_a_pipeline_has_a_known_schedule_and_at_least_one_micro_batch():
    assert PipelineParallelConfig().schedule == "1f1b"
    with pytest.raises(ConfigError, match="`schedule` must be one of gpipe, 1f1b, got `pipedream`"):
        PipelineParallelConfig("pipedream")
    with pytest.raises(ConfigError, match="`num_micro_batches` must be at least 1, got 0"):
        PipelineParallelConfig(num_micro_batches=0)
