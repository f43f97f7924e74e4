"""The words and names of FSDP that libraries import as constants."""

from __future__ import annotations

from accel_state.environment import find_setting


def _words(setting: str) -> list[str]:
    return list(find_setting(setting).choices or ())


FSDP_SHARDING_STRATEGY = _words("fsdp_sharding_strategy")
"""What can be sharded in version 1; a number in a config file counts from 1 in this list, as in the next ones."""
FSDP_AUTO_WRAP_POLICY = _words("fsdp_auto_wrap_policy")
"""How a model can be cut into units."""
FSDP_BACKWARD_PREFETCH = _words("fsdp_backward_prefetch")
"""When the backward pass can fetch the next unit in version 1."""
FSDP_STATE_DICT_TYPE = _words("fsdp_state_dict_type")
"""How checkpoints can be written in version 1."""
FSDP2_STATE_DICT_TYPE = ["SHARDED_STATE_DICT", "FULL_STATE_DICT"]
"""How checkpoints can be written in version 2."""
FSDP_MODEL_NAME = "pytorch_model_fsdp"
"""How the folder or file of a sharded model begins in a checkpoint."""
FSDP_PYTORCH_VERSION = "2.1.0.a0+32f93b1"
"""The first version of torch that version 1 needed elsewhere; every version that accel runs on is newer."""
FSDP2_PYTORCH_VERSION = "2.6.0"
"""The same for version 2."""
