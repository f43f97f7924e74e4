"""What trains the model: DeepSpeed, FSDP, Megatron-LM, and sizes of combined parallelisms."""

from __future__ import annotations

from collections.abc import Callable

from accel_launch.config.question import Answers, Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import MACHINE, has_several_machines, is_here, is_multi, is_tpu
from accel_state.environment import find_setting
from accel_state.environment.parsers import boolean, numbered, text

_ZERO = "deepspeed_config.zero_stage"
_OPTIMIZER = "deepspeed_config.offload_optimizer_device"
_PARAMETERS = "deepspeed_config.offload_param_device"
_deepspeed = answered("?deepspeed")
_by_file = answered("?deepspeed_json", True)
_by_answers = answered("?deepspeed_json", False)
_shards = both(_by_answers, answered(_ZERO, 2, 3))
_zero3 = both(_by_answers, answered(_ZERO, 3))


def _several(answers: Answers) -> bool:
    return _deepspeed(answers) and has_several_machines(answers)


_filtered = answered("?deepspeed_filter")

DEEPSPEED = (
    yes_no(
        "?deepspeed", "Train with DeepSpeed?", when=lambda answers: is_here(answers) and not is_tpu(answers)
    ),
    yes_no("?deepspeed_json", "Use a JSON file of DeepSpeed's own?", when=_deepspeed),
    Question("deepspeed_config.deepspeed_config_file", "Where is it?", text, "ds_config.json", _by_file),
    of_setting("deepspeed_zero_stage", "What is to be sharded (ZeRO stage)?", when=_by_answers),
    of_setting("deepspeed_offload_optimizer_device", "Where to keep optimizer states?", when=_shards),
    of_setting("deepspeed_offload_param_device", "Where to keep parameters?", when=_zero3),
    of_setting(
        "deepspeed_offload_optimizer_nvme_path",
        "Which NVMe folder for optimizer states?",
        default="/nvme",
        when=answered(_OPTIMIZER, "nvme"),
    ),
    of_setting(
        "deepspeed_offload_param_nvme_path",
        "Which NVMe folder for parameters?",
        default="/nvme",
        when=answered(_PARAMETERS, "nvme"),
    ),
    of_setting(
        "gradient_accumulation_steps", "How many batches per optimizer step?", default=1, when=_by_answers
    ),
    yes_no("?clipping", "Clip gradients?", when=_by_answers),
    of_setting("gradient_clipping", "To which norm?", default=1.0, when=answered("?clipping")),
    yes_no(
        "deepspeed_config.zero3_save_16bit_model",
        "Gather the 16-bit weights when the model is saved?",
        when=_zero3,
    ),
    yes_no(
        "deepspeed_config.zero3_init_flag",
        "Build the model sharded from the start (deepspeed.zero.Init)?",
        when=lambda answers: _zero3(answers) or _by_file(answers),
    ),
    yes_no("?moe", "Does the model have mixture-of-experts layers?", when=_zero3),
    of_setting(
        "deepspeed_moe_layer_cls_names",
        "Which classes are they, with commas between them?",
        when=answered("?moe"),
    ),
    of_setting("deepspeed_multinode_launcher", "How does DeepSpeed reach the machines?", when=_several),
    of_setting(
        "deepspeed_hostfile",
        "Which hostfile?",
        default="/job/hostfile",
        when=lambda answers: (
            _several(answers) and answers.get("deepspeed_config.deepspeed_multinode_launcher") != "standard"
        ),
    ),
    yes_no("?deepspeed_filter", "Leave some of its machines or GPUs out?", when=_several),
    of_setting("deepspeed_exclusion_filter", "Which ones to leave out?", when=_filtered),
    of_setting(
        "deepspeed_inclusion_filter",
        "Which ones to use?",
        when=lambda answers: (
            _filtered(answers) and not answers.get("deepspeed_config.deepspeed_exclusion_filter")
        ),
    ),
)


_WRAP = "fsdp_config.fsdp_auto_wrap_policy"
_fsdp = answered("?fsdp")
_v1 = both(_fsdp, answered("fsdp_config.fsdp_version", 1))
_v2 = both(_fsdp, answered("fsdp_config.fsdp_version", 2))
_by_layers = answered(_WRAP, "TRANSFORMER_BASED_WRAP")


FSDP = (
    yes_no(
        "?fsdp",
        "Train with fully sharded data parallel (FSDP)?",
        when=lambda answers: is_multi(answers) and not answers.get("?deepspeed"),
    ),
    of_setting("fsdp_version", "Which version of FSDP?", default=2, when=_fsdp),
    # With version 1 the key holds the strategy: that is how the newest files have it.
    Question(
        "fsdp_config.fsdp_reshard_after_forward",
        "What is to be sharded?",
        find_setting("fsdp_sharding_strategy").parse,
        "FULL_SHARD",
        _v1,
    ),
    Question(
        "fsdp_config.fsdp_reshard_after_forward",
        "Reshard the parameters after the forward pass?",
        boolean,
        True,
        _v2,
    ),
    yes_no("fsdp_config.fsdp_offload_params", "Keep parameters and gradients on the CPU?", when=_fsdp),
    of_setting(
        "fsdp_auto_wrap_policy",
        "How is the model to be cut into units?",
        default="TRANSFORMER_BASED_WRAP",
        when=_fsdp,
    ),
    yes_no(
        "?fsdp_no_split",
        "By the model's own `_no_split_modules` (transformers)?",
        default=True,
        when=both(_fsdp, _by_layers),
    ),
    of_setting(
        "fsdp_transformer_layer_cls_to_wrap",
        "Which classes of layers, with commas between them?",
        default="BertLayer",
        when=answered("?fsdp_no_split", False),
    ),
    of_setting(
        "fsdp_min_num_params",
        "From how many parameters is a module a unit?",
        default=100_000_000,
        when=answered(_WRAP, "SIZE_BASED_WRAP"),
    ),
    of_setting("fsdp_backward_prefetch", default="BACKWARD_PRE", when=_v1),
    of_setting(
        "fsdp_state_dict_type",
        "How are checkpoints to be written?",
        parse=numbered("FULL_STATE_DICT", "LOCAL_STATE_DICT", "SHARDED_STATE_DICT"),
        default="FULL_STATE_DICT",
        when=_v1,
    ),
    of_setting(
        "fsdp_state_dict_type",
        "How are checkpoints to be written?",
        parse=numbered("SHARDED_STATE_DICT", "FULL_STATE_DICT"),
        default="SHARDED_STATE_DICT",
        when=_v2,
    ),
    yes_no("fsdp_config.fsdp_forward_prefetch", "Fetch the next unit during the forward pass?", when=_v1),
    yes_no(
        "fsdp_config.fsdp_use_orig_params", "Keep the original parameters visible?", default=True, when=_v1
    ),
    yes_no(
        "fsdp_config.fsdp_cpu_ram_efficient_loading",
        "Load pretrained weights on one process only?",
        default=True,
        when=_fsdp,
    ),
    yes_no(
        "fsdp_config.fsdp_sync_module_states",
        "Send the parameters of rank 0 to all ranks at the start?",
        default=True,
        when=both(_v1, answered("fsdp_config.fsdp_cpu_ram_efficient_loading", False)),
    ),
    yes_no(
        "fsdp_config.fsdp_activation_checkpointing",
        "Compute activations again in the backward pass instead of keeping them?",
        when=_fsdp,
    ),
    yes_no(
        "fsdp_config.fsdp_activation_checkpointing_offload",
        "Keep the inputs of these layers on the CPU?",
        when=both(_v2, answered("fsdp_config.fsdp_activation_checkpointing")),
    ),
)


def settle(answers: dict[str, object]) -> None:
    """Add what follows from the answers: loading on one process needs the weights of rank 0 sent to all."""
    if _v1(answers) and answers.get("fsdp_config.fsdp_cpu_ram_efficient_loading"):
        answers["fsdp_config.fsdp_sync_module_states"] = True


_megatron = answered("?megatron")


def _may_be_megatron(answers: Answers) -> bool:
    return answers.get(MACHINE) == "MULTI_GPU" and not answers.get("?deepspeed") and not answers.get("?fsdp")


def _more_than_one(key: str) -> Callable[[Answers], bool]:
    return lambda answers: bool(answers.get(key, 1) > 1)


MEGATRON = (
    yes_no("?megatron", "Train with Megatron-LM?", when=_may_be_megatron),
    of_setting(
        "megatron_lm_tp_degree", "How many processes share each layer (tensor parallel)?", when=_megatron
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_sequence_parallelism",
        "Divide layer norms and dropouts along the sequence too?",
        default=True,
        when=both(_megatron, _more_than_one("megatron_lm_config.megatron_lm_tp_degree")),
    ),
    of_setting("megatron_lm_pp_degree", "How many stages (pipeline parallel)?", when=_megatron),
    of_setting(
        "megatron_lm_num_micro_batches",
        "Into how many pieces is a batch cut for the stages?",
        when=both(_megatron, _more_than_one("megatron_lm_config.megatron_lm_pp_degree")),
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_recompute_activations",
        "Compute chosen activations again in the backward pass?",
        default=True,
        when=_megatron,
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_use_distributed_optimizer",
        "Shard optimizer states over the data parallel ranks?",
        default=True,
        when=_megatron,
    ),
    of_setting(
        "megatron_lm_gradient_clipping", "To which norm are gradients clipped (0 for none)?", when=_megatron
    ),
)


_PREFIX = "parallelism_config.parallelism_config_"
_combined = answered("?parallelism")
_sequence_shared = both(_combined, _more_than_one(f"{_PREFIX}sp_size"))


def _may_be_combined(answers: Answers) -> bool:
    uses_fsdp2 = bool(answers.get("?fsdp")) and answers.get("fsdp_config.fsdp_version") == 2
    return uses_fsdp2 or bool(answers.get("?deepspeed"))


PARALLELISM = (
    yes_no("?parallelism", "Combine several parallelisms (ParallelismConfig)?", when=_may_be_combined),
    of_setting("parallelism_dp_replicate_size", "How many full copies of the model?", when=_combined),
    of_setting("parallelism_dp_shard_size", "How many shards of each copy?", when=_combined),
    of_setting(
        "parallelism_tp_size", "How many processes share each layer (tensor parallel)?", when=_combined
    ),
    of_setting(
        "parallelism_pp_size",
        "Among how many processes are the blocks of the model divided (pipeline parallel)?",
        when=_combined,
    ),
    of_setting(
        "parallelism_pp_schedule",
        "In which order do its stages compute?",
        when=both(_combined, _more_than_one(f"{_PREFIX}pp_size")),
    ),
    of_setting(
        "parallelism_ep_size",
        "Over how many processes are the experts of a layer sharded (expert parallel)?",
        when=_combined,
    ),
    of_setting(
        "parallelism_cp_size", "How many processes share each sequence (context parallel)?", when=_combined
    ),
    of_setting(
        "parallelism_cp_comm_strategy",
        "How do keys and values travel?",
        when=both(_combined, _more_than_one(f"{_PREFIX}cp_size")),
    ),
    of_setting(
        "parallelism_sp_size",
        "How many processes share each sequence by attention heads (Ulysses)?",
        when=both(_combined, answered("?deepspeed")),
    ),
    yes_no(
        f"{_PREFIX}sp_seq_length_is_variable",
        "Does the length of the sequences differ from batch to batch?",
        default=True,
        when=_sequence_shared,
    ),
    of_setting(
        "parallelism_sp_seq_length",
        "How long are the sequences?",
        default=1024,
        when=answered(f"{_PREFIX}sp_seq_length_is_variable", False),
    ),
    of_setting("parallelism_sp_attn_implementation", "Around which attention?", when=_sequence_shared),
)
