"""Settings of 8-bit training that become several variables."""

from __future__ import annotations

from accel_state.environment import Setting
from accel_state.environment.parsers import Parser, boolean


def _to_three(text: str) -> tuple[bool, bool, bool]:
    values = [boolean(part) for part in text.strip("()[] ").split(",")]
    first, second, third = values * 3 if len(values) == 1 else values
    return first, second, third


three_booleans = Parser("true or false, or three of them with commas between", _to_three)

TITLE = "8-bit training"

SETTINGS = (
    Setting(
        "fp8_override_linear_precision",
        "",
        three_booleans,
        None,
        "Which products are done in higher precision: forward, inputs' and weights' gradients (Transformer Engine).",
        flag="--fp8_override_linear_precision",
        config_key="fp8_config.override_linear_precision",
    ),
)
