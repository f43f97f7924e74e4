"""Megatron-LM."""

from __future__ import annotations

from accel_launch.config.question import Answers, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import MACHINE

_wanted = answered("?megatron")


def _is_possible(answers: Answers) -> bool:
    return answers.get(MACHINE) == "MULTI_GPU" and not answers.get("?deepspeed") and not answers.get("?fsdp")


def _has_tensor_parallel(answers: Answers) -> bool:
    return bool(answers.get("megatron_lm_config.megatron_lm_tp_degree", 1) > 1)


def _has_pipeline(answers: Answers) -> bool:
    return bool(answers.get("megatron_lm_config.megatron_lm_pp_degree", 1) > 1)


QUESTIONS = (
    yes_no("?megatron", "Train with Megatron-LM?", when=_is_possible),
    of_setting(
        "megatron_lm_tp_degree", "How many processes share each layer (tensor parallel)?", when=_wanted
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_sequence_parallelism",
        "Divide layer norms and dropouts along the sequence too?",
        default=True,
        when=both(_wanted, _has_tensor_parallel),
    ),
    of_setting("megatron_lm_pp_degree", "How many stages (pipeline parallel)?", when=_wanted),
    of_setting(
        "megatron_lm_num_micro_batches",
        "Into how many pieces is a batch cut for the stages?",
        when=both(_wanted, _has_pipeline),
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_recompute_activations",
        "Compute chosen activations again in the backward pass?",
        default=True,
        when=_wanted,
    ),
    yes_no(
        "megatron_lm_config.megatron_lm_use_distributed_optimizer",
        "Shard optimizer states over the data parallel ranks?",
        default=True,
        when=_wanted,
    ),
    of_setting(
        "megatron_lm_gradient_clipping", "To which norm are gradients clipped (0 for none)?", when=_wanted
    ),
)
