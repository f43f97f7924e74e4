"""Fully sharded data parallel, version 1 and 2."""

from __future__ import annotations

from accel_launch.config.question import Answers, Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import is_multi
from accel_state.environment import find_setting
from accel_state.environment.parsers import boolean, numbered

_WRAP = "fsdp_config.fsdp_auto_wrap_policy"
_wanted = answered("?fsdp")
_v1 = both(_wanted, answered("fsdp_config.fsdp_version", 1))
_v2 = both(_wanted, answered("fsdp_config.fsdp_version", 2))
_by_layers = answered(_WRAP, "TRANSFORMER_BASED_WRAP")


def _is_possible(answers: Answers) -> bool:
    return is_multi(answers) and not answers.get("?deepspeed")


QUESTIONS = (
    yes_no("?fsdp", "Train with fully sharded data parallel (FSDP)?", when=_is_possible),
    of_setting("fsdp_version", "Which version of FSDP?", default=2, when=_wanted),
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
        "Give the gathered parameters up again after the forward pass?",
        boolean,
        True,
        _v2,
    ),
    yes_no("fsdp_config.fsdp_offload_params", "Keep parameters and gradients on the CPU?", when=_wanted),
    of_setting(
        "fsdp_auto_wrap_policy",
        "How is the model to be cut into units?",
        default="TRANSFORMER_BASED_WRAP",
        when=_wanted,
    ),
    yes_no(
        "?fsdp_no_split",
        "By the model's own `_no_split_modules` (transformers)?",
        default=True,
        when=both(_wanted, _by_layers),
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
        when=_wanted,
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
        when=_wanted,
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
