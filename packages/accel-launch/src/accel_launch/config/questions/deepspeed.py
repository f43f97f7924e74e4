"""DeepSpeed, with a JSON file of its own or without."""

from __future__ import annotations

from accel_launch.config.question import Answers, Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import has_several_machines, is_here, is_tpu
from accel_state.environment.parsers import text

_ZERO = "deepspeed_config.zero_stage"
_OPTIMIZER = "deepspeed_config.offload_optimizer_device"
_PARAMETERS = "deepspeed_config.offload_param_device"
_wanted = answered("?deepspeed")
_by_file = answered("?deepspeed_json", True)
_by_answers = answered("?deepspeed_json", False)
_shards = both(_by_answers, answered(_ZERO, 2, 3))
_zero3 = both(_by_answers, answered(_ZERO, 3))


def _several(answers: Answers) -> bool:
    return _wanted(answers) and has_several_machines(answers)


_filtered = answered("?deepspeed_filter")

QUESTIONS = (
    yes_no(
        "?deepspeed", "Train with DeepSpeed?", when=lambda answers: is_here(answers) and not is_tpu(answers)
    ),
    yes_no("?deepspeed_json", "Use a JSON file of DeepSpeed's own?", when=_wanted),
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
