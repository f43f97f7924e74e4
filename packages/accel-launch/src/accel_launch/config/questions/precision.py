"""Number formats, and the library for 8 bits."""

from __future__ import annotations

from accel_launch.config.question import answered, both, of_setting, yes_no
from accel_launch.config.questions.place import is_here, is_tpu
from accel_state.environment.parsers import choice

_fp8 = both(is_here, answered("mixed_precision", "fp8"))
_te = answered("fp8_config.backend", "TE")
_ao = answered("fp8_config.backend", "AO")

QUESTIONS = (
    of_setting("mixed_precision", "Which mixed precision?"),
    yes_no(
        "downcast_bf16",
        "Make doubles float32, and only floats bf16?",
        when=both(is_tpu, answered("mixed_precision", "bf16")),
    ),
    of_setting(
        "fp8_backend",
        "Which library does the 8-bit arithmetic?",
        parse=choice("TE", "MSAMP", "AO"),
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
    of_setting("fp8_opt_level", when=answered("fp8_config.backend", "MSAMP")),
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
