"""torch.compile."""

from __future__ import annotations

from accel_launch.config.question import answered, both, of_setting, yes_no
from accel_state.enums import DynamoBackend
from accel_state.environment.parsers import choice

_BACKENDS = choice(*(name for name in DynamoBackend.list() if name != "NO"))
_wanted = answered("?dynamo")
_customised = both(_wanted, answered("?dynamo_custom"))

QUESTIONS = (
    yes_no("?dynamo", "Compile the model with torch.compile?"),
    of_setting("dynamo_backend", "Which compiler?", parse=_BACKENDS, default="INDUCTOR", when=_wanted),
    yes_no("?dynamo_custom", "Choose its further settings?", when=_wanted),
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
