"""Which fields of the FSDP plugin go with ``xla_fsdp_v2``."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from torch.distributed.fsdp import CPUOffload, CPUOffloadPolicy, ShardingStrategy, StateDictType

from accel_state.errors import ConfigError
from accel_state.runtime import has_runtime

_SETTINGS = ("shard_output",)
# Values of other fields, once completed, that ask for nothing else than what the compiler does.
_MEANT: dict[str, tuple[Any, ...]] = {
    "sharding_strategy": (None, ShardingStrategy.FULL_SHARD),
    "reshard_after_forward": (True, None),
    "mixed_precision_policy": (None,),
    "reduce_dtype": (None,),
    "ignored_modules": (None,),
    "state_dict_type": (StateDictType.FULL_STATE_DICT,),
    "activation_checkpointing": (False,),
    "cpu_ram_efficient_loading": (False,),
    "load_weights_from": (None,),
    "parallel_plan": (None,),
    "num_forward_prefetch": (0,),
    "num_backward_prefetch": (0,),
    "forward_methods": ((),),
    "reduce_once": (False,),
}


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields of the plugin that would have no effect with ``xla_fsdp_v2``, and its own fields without it.

    Args:
        fields: All of them, once completed.

    Raises:
        ConfigError: Naming the fields.
    """
    if not fields["xla_fsdp_v2"]:
        _refuse(
            [name for name in ("xla_fsdp_settings", "xla_fsdp_grad_ckpt") if fields[name]],
            "without `xla_fsdp_v2=True`: the first version of FSDP on XLA devices is not part of accel",
        )
        return
    idle = [name for name, meant in _MEANT.items() if fields[name] not in meant]
    offload = fields["cpu_offload"]
    if isinstance(offload, CPUOffloadPolicy) or (isinstance(offload, CPUOffload) and offload.offload_params):
        idle.append("cpu_offload")
    _refuse(idle, "with `xla_fsdp_v2`, where XLA's compiler decides")
    unknown = [name for name in fields["xla_fsdp_settings"] or {} if name not in _SETTINGS]
    if unknown:
        raise ConfigError(
            f"`xla_fsdp_settings` has {_listed(unknown)}, which `xla_fsdp_v2` does not know. It knows: "
            f"{_listed(_SETTINGS)}. Leave out the rest."
        )


def use_spmd() -> None:
    """Let this process drive all its XLA devices as one, which must be settled before it opens them.

    Raises:
        ConfigError: If it has opened one.
    """
    try:
        runtime = importlib.import_module("torch_xla.runtime")
    except ModuleNotFoundError:
        return  # there is no such device; the strategy says so
    if runtime.is_spmd():
        return
    if has_runtime():
        raise ConfigError(
            "`xla_fsdp_v2` comes too late: this process has opened one XLA device alone, by an `Accelerator` or "
            "`PartialState`. Call `torch_xla.runtime.use_spmd()` before those, or build this one first."
        )
    runtime.use_spmd()


def _refuse(names: list[str], reason: str) -> None:
    if names:
        raise ConfigError(f"{_listed(names)} would have no effect {reason}. Leave out what has none.")


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)
