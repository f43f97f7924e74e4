"""The test or GPU script behind each cell of the table of engines."""

# ruff: noqa: E501 -- a row is a line
from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ACCEL = "packages/accel/tests"
_BACKENDS = "packages/accel-backends/tests"
_STEPPING = f"{_ACCEL}/test_accelerator_stepping.py"
_TRAINING = f"{_ACCEL}/test_training.py"
_SAVER = f"{_ACCEL}/checkpoints/test_checkpointer_save_model.py"
_SHARDED = f"{_ACCEL}/test_accelerator_sharded.py"
_USE = f"{_ACCEL}/test_accelerator_sharded_use.py"
_CHECKPOINTS = f"{_ACCEL}/test_accelerator_sharded_checkpoints.py"
_RESUMING = f"{_ACCEL}/test_accelerator_sharded_resuming.py"
_LOADING = f"{_ACCEL}/test_accelerator_sharded_loading.py"
_SEQUENCES = f"{_ACCEL}/test_accelerator_sequences.py"
_PIPELINE = f"{_ACCEL}/test_accelerator_pipeline.py"
_PIPELINE_AXES = f"{_ACCEL}/test_accelerator_pipeline_axes.py"
_DDP = f"{_BACKENDS}/strategies/test_ddp.py"
_SINGLE = f"{_BACKENDS}/strategies/test_single.py"
_FLAT = f"{_BACKENDS}/strategies/test_fsdp1.py"
_XLA_PROCESSES = f"{_BACKENDS}/strategies/test_xla.py"
_DEEPSPEED = "integration-tests/test_deepspeed"
_XLA = "integration-tests/test_xla_training.py"
_MEGATRON = "integration-tests/test_megatron.py"
_FP8 = "integration-tests/test_fp8.py"

EVIDENCE: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "single": {
            "accumulation": f"{_TRAINING}::test_clipped_training_is_the_same_however_the_batch_is_cut",
            "clipping by norm": f"{_STEPPING}::test_clipping_returns_the_norm_before_it",
            "clipping by value": f"{_STEPPING}::test_clipping_by_value_clamps_every_gradient",
            "several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "accumulation over several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "resuming bit for bit": "integration-tests/test_resume.py::test_resuming_mid_epoch_is_bit_exact",
            "`save_model` in parts": f"{_SAVER}::test_large_weights_are_split_with_an_index",
            "`torch.compile`": f"{_SINGLE}::test_models_are_converted_then_compiled",
            "bf16": f"{_BACKENDS}/precisions/test_bf16.py::test_a_small_model_trains",
            "fp16": f"{_STEPPING}::test_an_overflow_in_fp16_skips_the_step_and_says_so",
            "fp8": f"{_FP8}::test_200_steps_on_digits_come_near_bf16",
        },
        "ddp": {
            "accumulation": f"{_DDP}::test_accumulated_micro_batches_train_as_one_batch",
            "clipping by norm": f"{_TRAINING}::test_clipped_training_is_the_same_however_the_batch_is_cut",
            "clipping by value": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "accumulation over several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "resuming bit for bit": "integration-tests/test_resume.py::test_resuming_on_two_processes_from_a_save_behind_the_loop_is_bit_exact",
            "`save_model` in parts": f"{_SAVER}::test_weights_of_two_processes_are_saved_once_under_their_own_names",
            "`torch.compile`": f"{_DDP}::test_a_compiled_model_is_wrapped_after_compilation_and_still_defers_and_reduces",
            "replicas (`dp_replicate_size`)": f"{_DDP}::test_two_ranks_train_as_one_process_with_the_same_global_batch",
            "uneven inputs (`join_uneven_inputs`)": f"{_DDP}::test_ranks_may_run_out_of_batches_at_different_times",
            "local SGD": f"{_ACCEL}/test_local_sgd.py::test_ranks_go_their_own_ways_and_meet_at_the_mean",
            "communication hooks": f"{_BACKENDS}/handlers/test_comm_hooks.py::test_the_fp16_hook_averages_in_half_precision",
            "bf16": f"{_DDP}::test_bf16_trains_close_to_full_precision_and_alike_on_both_ranks",
            "fp16": f"{_DDP}::test_an_overflow_skips_the_step_halves_the_scale_and_stills_the_scheduler_on_every_rank",
            "fp8": f"{_FP8}::test_two_ranks_train_as_one_process_does",
        },
        "fsdp": {
            "accumulation": f"{_SHARDED}::test_accumulated_micro_batches_of_two_ranks_are_one_batch",
            "clipping by norm": f"{_SHARDED}::test_gradients_are_clipped_by_the_norm_of_the_whole",
            "clipping by value": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "several models": f"{_USE}::test_two_models_with_one_optimizer_train_as_in_one_process",
            "accumulation over several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "resuming bit for bit": f"{_RESUMING}::test_a_run_resumed_within_an_epoch_goes_on_bit_for_bit",
            "`save_model` in parts": f"{_CHECKPOINTS}::test_any_number_of_ranks_and_any_strategy_reads_it",
            "`torch.compile`": f"{_USE}::test_equal_blocks_share_one_compiled_graph",
            "meta-device initialization": f"{_FLAT}::test_models_on_the_meta_device_get_their_values_from_the_function",
            "replicas (`dp_replicate_size`)": f"{_SHARDED}::test_four_ranks_in_any_layout_train_as_one_process",
            "sharded parameters (`dp_shard_size`)": f"{_SHARDED}::test_two_ranks_train_bit_for_bit_as_one_process",
            "bf16": f"{_USE}::test_bf16_computes_in_bf16_and_keeps_everything_else_in_fp32",
            "fp16": f"{_USE}::test_all_ranks_skip_a_step_that_overflowed_on_one",
            "fp8": f"{_FP8}::test_sharded_ranks_train_as_one_process_does",
        },
        "fsdp2": {
            "accumulation": f"{_SHARDED}::test_accumulated_micro_batches_of_two_ranks_are_one_batch",
            "clipping by norm": f"{_SHARDED}::test_gradients_are_clipped_by_the_norm_of_the_whole",
            "clipping by value": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "several models": f"{_USE}::test_two_models_with_one_optimizer_train_as_in_one_process",
            "accumulation over several models": f"{_STEPPING}::test_several_models_accumulate_together_and_are_clipped_by_value",
            "resuming bit for bit": f"{_RESUMING}::test_a_run_resumed_within_an_epoch_goes_on_bit_for_bit",
            "`save_model` in parts": f"{_CHECKPOINTS}::test_all_ways_out_of_a_sharded_run_lead_to_the_same_weights",
            "`torch.compile`": f"{_USE}::test_equal_blocks_share_one_compiled_graph",
            "CPU offload": f"{_USE}::test_shards_on_the_cpu_and_shards_made_by_others_train_as_well",
            "meta-device initialization": f"{_LOADING}::test_where_the_weights_come_from_makes_no_difference",
            "replicas (`dp_replicate_size`)": f"{_SHARDED}::test_four_ranks_in_any_layout_train_as_one_process",
            "sharded parameters (`dp_shard_size`)": f"{_SHARDED}::test_two_ranks_train_bit_for_bit_as_one_process",
            "tensor parallelism (`tp_size`)": f"{_SHARDED}::test_ranks_that_share_layers_train_as_one_process",
            "context parallelism (`cp_size`)": f"{_SEQUENCES}::test_ranks_that_share_sequences_train_like_one_process",
            "sequence parallelism (`sp_size`)": f"{_SEQUENCES}::test_ranks_that_share_sequences_train_like_one_process",
            "expert parallelism (`ep_size`)": f"{_SHARDED}::test_ranks_that_share_experts_train_as_one_process",
            "bf16": f"{_USE}::test_bf16_computes_in_bf16_and_keeps_everything_else_in_fp32",
            "fp16": f"{_USE}::test_all_ranks_skip_a_step_that_overflowed_on_one",
            "fp8": f"{_FP8}::test_sharded_ranks_train_as_one_process_does",
        },
        "pipeline": {
            "accumulation": f"{_PIPELINE}::test_gradients_of_several_calls_add_up_also_those_of_a_shared_weight",
            "clipping by norm": f"{_PIPELINE}::test_stages_train_like_one_process",
            "resuming bit for bit": f"{_PIPELINE}::test_a_checkpoint_of_stages_goes_on_in_stages_and_in_one_process",
            "`save_model` in parts": f"{_CHECKPOINTS}::test_stages_are_saved_in_parts_and_read_in_any_layout_and_back",
            "`torch.compile`": f"{_PIPELINE}::test_each_rank_reads_its_stage_of_a_model_on_the_meta_device_and_compiles_its_blocks",
            "meta-device initialization": f"{_PIPELINE}::test_each_rank_reads_its_stage_of_a_model_on_the_meta_device_and_compiles_its_blocks",
            "replicas (`dp_replicate_size`)": f"{_PIPELINE}::test_sharded_stages_train_like_one_process",
            "sharded parameters (`dp_shard_size`)": f"{_PIPELINE}::test_sharded_stages_train_like_one_process",
            "tensor parallelism (`tp_size`)": f"{_PIPELINE}::test_sharded_stages_train_like_one_process",
            "context parallelism (`cp_size`)": f"{_PIPELINE_AXES}::test_stages_whose_ranks_share_sequences_train_like_one_process",
            "sequence parallelism (`sp_size`)": f"{_PIPELINE_AXES}::test_stages_whose_ranks_share_sequences_train_like_one_process",
            "expert parallelism (`ep_size`)": f"{_PIPELINE_AXES}::test_stages_whose_ranks_spread_experts_train_like_one_process",
            "pipeline parallelism (`pp_size`)": f"{_PIPELINE}::test_stages_train_like_one_process",
            "bf16": f"{_PIPELINE}::test_a_call_that_trains_in_stages_trains_without_them_too_in_half_precision",
            "fp16": f"{_PIPELINE}::test_a_call_that_trains_in_stages_trains_without_them_too_in_half_precision",
        },
        "deepspeed": {
            "accumulation": f"{_DEEPSPEED}_training.py::test_two_ranks_train_as_one_process",
            "accumulation over several models": f"{_DEEPSPEED}_alone.py::test_one_accumulated_loss_trains_two_models_alike",
            "clipping by norm": f"{_DEEPSPEED}_training.py::test_two_ranks_train_as_one_process",
            "several models": f"{_DEEPSPEED}_use.py::test_two_models_may_be_trained_in_turn_and_together",
            "resuming bit for bit": f"{_DEEPSPEED}_checkpoints.py::test_what_was_saved_is_loaded_bit_for_bit",
            "`save_model` in parts": f"{_DEEPSPEED}_checkpoints.py::test_the_weights_alone_are_for_plain_pytorch_and_hold_tied_ones_once",
            "CPU offload": f"{_DEEPSPEED}_training.py::test_two_ranks_train_as_one_process",
            "sharded parameters (`dp_shard_size`)": f"{_DEEPSPEED}_training.py::test_two_ranks_train_as_one_process",
            "tensor parallelism (`tp_size`)": f"{_DEEPSPEED}_layers.py::test_ranks_that_share_layers_train_as_one_process",
            "sequence parallelism (`sp_size`)": f"{_DEEPSPEED}_sequences.py::test_ranks_that_share_sequences_train_as_one_process",
            "bf16": f"{_DEEPSPEED}_training.py::test_bf16_keeps_close_to_fp32",
        },
        "megatron": {
            "clipping by norm": f"{_MEGATRON}::test_gradients_are_clipped_by_the_norm_of_all",
            "accumulation": f"{_MEGATRON}::test_two_ranks_train_as_one_process_of_plain_pytorch",
            "replicas (`dp_replicate_size`)": f"{_MEGATRON}::test_two_ranks_train_as_one_process_of_plain_pytorch",
            "sharded parameters (`dp_shard_size`)": f"{_MEGATRON}::test_two_ranks_train_as_one_process_of_plain_pytorch",
            "tensor parallelism (`tp_size`)": f"{_MEGATRON}::test_two_ranks_train_as_one_process_of_plain_pytorch",
            "pipeline parallelism (`pp_size`)": f"{_MEGATRON}::test_two_ranks_train_as_one_process_of_plain_pytorch",
        },
        "xla": {
            "accumulation": f"{_XLA}::test_one_device_trains_as_plain_pytorch",
            "clipping by norm": f"{_XLA}::test_one_device_trains_as_plain_pytorch",
            "clipping by value": f"{_XLA}::test_operations_take_tensors_of_the_device",
            "resuming bit for bit": f"{_XLA}::test_a_run_that_is_resumed_goes_on_bit_for_bit",
            "`save_model` in parts": f"{_XLA}::test_operations_take_tensors_of_the_device",
            "replicas (`dp_replicate_size`)": f"{_XLA_PROCESSES}::test_two_processes_train_as_one_and_average_once_per_window",
            "bf16": f"{_XLA}::test_bf16_computes_in_it_and_stores_fp32",
        },
    }
)
"""Tests and scripts by strategy and feature."""

UNTESTED: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("deepspeed", "`torch.compile`"): "no run compiles what an engine wraps",
        ("deepspeed", "meta-device initialization"): "`zero3_init_flag` is tested as a setting alone",
        (
            "deepspeed",
            "replicas (`dp_replicate_size`)",
        ): "hpZ, its own way to have copies, is what is tested",
        ("deepspeed", "fp16"): "DeepSpeed's needs a GPU",
        ("fsdp", "CPU offload"): "on CPUs, where tests run, there is nothing to offload",
        ("megatron", "fp16"): "needs a GPU",
        ("megatron", "CPU offload"): "`optimizer_cpu_offload` needs a GPU",
        ("megatron", "meta-device initialization"): "the model is made anew from its config",
        ("megatron", "resuming bit for bit"): "checkpoints are loaded in other layouts, to rounding",
        ("megatron", "context parallelism (`cp_size`)"): "needs layers of Transformer Engine, on a GPU",
        ("pipeline", "accumulation over several models"): "no run has more than one",
        ("pipeline", "clipping by value"): "as `fsdp2` does it, from which it is inherited",
        ("pipeline", "CPU offload"): "no run offloads stages",
        ("pipeline", "several models"): "no run has more than one",
        ("megatron", "bf16"): "needs a GPU",
        ("xla", "`torch.compile`"): "XLA compiles everything",
        ("xla", "accumulation over several models"): "no run has more than one",
        ("xla", "several models"): "no run has more than one",
    }
)
"""Abilities that strategies declare, but no test shows."""

ON_DEVICES: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "single": {
            "cpu": EVIDENCE["single"]["accumulation"],
            "cuda": f"{_TRAINING}::test_one_process_trains_bit_for_bit_as_plain_torch",
        },
        "xla": {"xla": f"{_XLA}::test_one_device_trains_as_plain_pytorch"},
        **{
            strategy: {"cpu": EVIDENCE[strategy]["accumulation"], **({"cuda": on_cuda} if on_cuda else {})}
            for strategy, on_cuda in {
                "ddp": f"{_DDP}::test_two_ranks_train_as_one_process_with_the_same_global_batch",
                "fsdp": f"{_SHARDED}::test_four_ranks_in_any_layout_train_as_one_process",
                "fsdp2": f"{_SHARDED}::test_four_ranks_in_any_layout_train_as_one_process",
                "pipeline": f"{_PIPELINE}::test_stages_train_like_one_process",
                "deepspeed": "packages/accel/tests/test_accelerator_engines.py::test_deepspeed_in_fp16_skips_a_step_that_overflows_and_trains_on",
            }.items()
        },
    }
)
"""Tests and scripts by strategy and device that a strategy was run on."""
