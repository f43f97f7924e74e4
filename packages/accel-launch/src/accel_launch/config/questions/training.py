"""How a run computes: compilation, how many processes on which devices, number formats."""

from __future__ import annotations

from accel_launch.config.question import Answers, Question, answered, both, of_setting, yes_no
from accel_launch.config.questions.place import (
    MACHINE,
    has_several_machines,
    is_here,
    is_multi,
    is_plain,
    is_tpu,
)
from accel_state.enums import DynamoBackend
from accel_state.environment.parsers import choice, text

_BACKENDS = choice(*(name for name in DynamoBackend.list() if name != "NO"))
_compiled = answered("?dynamo")
_customised = both(_compiled, answered("?dynamo_custom"))

COMPILATION = (
    yes_no("?dynamo", "Compile the model with torch.compile?"),
    of_setting("dynamo_backend", "Which compiler?", parse=_BACKENDS, default="INDUCTOR", when=_compiled),
    yes_no("?dynamo_custom", "Choose its further settings?", when=_compiled),
    of_setting("dynamo_mode", "What is it to optimise for?", when=_customised),
    yes_no(
        "dynamo_config.dynamo_use_fullgraph", "Fail where the model is no single graph?", when=_customised
    ),
    yes_no("dynamo_config.dynamo_use_dynamic", "Compile for changing shapes?", when=_customised),
    yes_no(
        "dynamo_config.dynamo_use_regional_compilation",
        "Compile the repeated blocks one by one?",
        when=_customised,
    ),
)


def _has_gpus(answers: Answers) -> bool:
    on_gpus = answers.get(MACHINE) in ("NO", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU", "MULTI_MLU", "MULTI_MUSA")
    return on_gpus and not answers.get("use_cpu") and not has_several_machines(answers)


PROCESSES = (
    of_setting(
        "num_processes",
        "How many processes in all?",
        default=lambda answers: 8 if is_tpu(answers) else answers.get("num_machines", 1),
        when=lambda answers: is_multi(answers) or is_tpu(answers),
    ),
    Question("gpu_ids", "Which GPUs of this machine, such as 0,2?", text, "all", _has_gpus),
    yes_no(
        "enable_cpu_affinity",
        "Bind each process to the CPU cores near its GPU (NVIDIA)?",
        when=lambda answers: (
            answers.get(MACHINE) == "MULTI_GPU" or (is_plain(answers) and _has_gpus(answers))
        ),
    ),
)


_fp8 = both(is_here, answered("mixed_precision", "fp8"))
_te = answered("fp8_config.backend", "TE")
_ao = answered("fp8_config.backend", "AO")

PRECISION = (
    of_setting("mixed_precision", "Which mixed precision?"),
    yes_no(
        "downcast_bf16",
        "Make doubles float32, and only floats bf16?",
        when=both(is_tpu, answered("mixed_precision", "bf16")),
    ),
    of_setting(
        "fp8_backend",
        "Which library does the 8-bit arithmetic?",
        parse=choice("TE", "AO"),
        default="TE",
        when=_fp8,
    ),
    yes_no("fp8_config.use_autocast_during_eval", "Use 8 bits in evaluation too?", when=_te),
    of_setting("fp8_margin", when=_te),
    of_setting("fp8_interval", when=_te),
    of_setting("fp8_format", when=_te),
    of_setting("fp8_amax_history_len", when=_te),
    of_setting("fp8_amax_compute_algo", when=_te),
    yes_no("?override", "Do some products in higher precision?", when=_te),
    of_setting(
        "fp8_override_linear_precision",
        "Forward, inputs' gradients, weights' gradients",
        default=(False, False, False),
        when=answered("?override"),
    ),
    yes_no(
        "fp8_config.enable_fsdp_float8_all_gather",
        "Gather sharded parameters in 8 bits?",
        default=True,
        when=_ao,
    ),
    yes_no(
        "fp8_config.pad_inner_dim", "Pad matrices to the sizes 8-bit products need?", default=True, when=_ao
    ),
)
