"""Telling transformers of a DeepSpeed config, so that it builds models sharded from the start."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import AUTO
from accel_backends.plugins.deepspeed.hf_config import HfDeepSpeedConfig
from accel_state.availability import why_not
from accel_state.errors import NotAvailableError

_INTEGRATION = "transformers.integrations.deepspeed"


def announce(config: Mapping[str, Any]) -> Any:
    """Let transformers know of a config with ZeRO 3, and return what must be kept for as long as it is to know.

    Raises:
        NotAvailableError: If transformers or DeepSpeed is not installed.
    """
    for package in ("transformers", "deepspeed"):
        reason = why_not(package)
        if reason is not None:
            raise NotAvailableError(
                f"`zero3_init_flag` lets `transformers` build models by DeepSpeed. {reason}"
            )
    # transformers' own class needs a package named `accelerate`.
    told = HfDeepSpeedConfig(_for_building(config))
    import_module(_INTEGRATION).set_hf_deepspeed_config(told)
    return told


def withdraw() -> None:
    """Let transformers build models whole."""
    if "transformers" not in sys.modules:  # it has not been told anything
        return
    import_module(_INTEGRATION).unset_hf_deepspeed_config()


def _for_building(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `deepspeed.zero.Init` accepts: batch sizes must be numbers, though none is trained with."""
    found = copy.deepcopy(dict(config))
    for key in ("gradient_accumulation_steps", "train_micro_batch_size_per_gpu"):
        if found.get(key, AUTO) == AUTO:
            found[key] = 1
    if found.get("train_batch_size") == AUTO:
        del found["train_batch_size"]
    return found
