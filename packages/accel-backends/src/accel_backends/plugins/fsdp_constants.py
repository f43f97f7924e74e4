"""Names and accepted values of FSDP settings that libraries import as constants."""

from __future__ import annotations

from accel_state.environment import find_setting


def _words(setting: str) -> list[str]:
    return list(find_setting(setting).choices or ())


FSDP_SHARDING_STRATEGY = _words("fsdp_sharding_strategy")
"""Sharding strategies of version 1. A number in a config file is a position in this list, from 1; so below."""
FSDP_AUTO_WRAP_POLICY = _words("fsdp_auto_wrap_policy")
"""Ways to split a model into FSDP units."""
FSDP_BACKWARD_PREFETCH = _words("fsdp_backward_prefetch")
"""When the backward pass of version 1 prefetches the next unit."""
FSDP_STATE_DICT_TYPE = _words("fsdp_state_dict_type")
"""Checkpoint formats of version 1."""
FSDP2_STATE_DICT_TYPE = ["SHARDED_STATE_DICT", "FULL_STATE_DICT"]
"""Checkpoint formats of version 2."""
FSDP_MODEL_NAME = "pytorch_model_fsdp"
"""Prefix of the folder or file of a sharded model in a checkpoint."""
FSDP_PYTORCH_VERSION = "2.1.0.a0+32f93b1"
"""The first release of torch with which Accelerate supports version 1; accel needs a newer one anyway."""
FSDP2_PYTORCH_VERSION = "2.6.0"
"""The same for version 2."""
