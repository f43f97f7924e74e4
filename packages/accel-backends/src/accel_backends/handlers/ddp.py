"""How a model is wrapped for data parallelism: the arguments of `DistributedDataParallel`, and its hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from accel_state.enums import DDPCommunicationHookName, DDPCommunicationHookType
from accel_state.errors import ConfigError, did_you_mean
from accel_state.kwargs_handler import KwargsHandler

Hook = Callable[..., Any]
HookType = DDPCommunicationHookType

_WRAPPERS = frozenset({HookType.FP16, HookType.BF16})
_HOOK_FIELDS = ("comm_hook", "comm_wrapper", "comm_state_option")


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Customises how a model is wrapped in `torch.nn.parallel.DistributedDataParallel`.

    The first seven fields are that class's arguments of the same name.

    Attributes:
        comm_hook: How gradients are packed for the wire; a member of `DDPCommunicationHookType` or its
            string.
        comm_wrapper: A cast (fp16 or bf16) put around ``comm_hook``.
        comm_state_option: Arguments of ``PowerSGDState`` for the PowerSGD hooks.

    Raises:
        ConfigError: If hook, wrapper and state options do not fit together.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType | DDPCommunicationHookName = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType | DDPCommunicationHookName = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comm_hook = HookType(self.comm_hook)
        self.comm_wrapper = HookType(self.comm_wrapper)
        _check_combination(self.comm_hook, self.comm_wrapper, self.comm_state_option)

    def to_dict(self, ignore_keys: Collection[str] = _HOOK_FIELDS) -> dict[str, Any]:
        """Return the fields that are arguments of `DistributedDataParallel`, by name."""
        return {name: value for name, value in super().to_dict().items() if name not in ignore_keys}

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Make ``model`` send its gradients as this handler says; call once on every rank, before the first backward.

        Raises:
            ConfigError: If torch has no such hook for the process group's backend (bf16 needs NCCL or XCCL), or
                no such option of its state.
        """
        hook, wrapper = HookType(self.comm_hook), HookType(self.comm_wrapper)
        if hook == HookType.NO:
            return
        function = _hook(hook)
        if wrapper != HookType.NO:
            function = _wrapper(wrapper)(function)
        state = _state(self.comm_state_option) if hook == HookType.POWER_SGD else None
        try:
            model.register_comm_hook(state, function)
        except TypeError as error:
            raise ConfigError(
                f"The communication hook `{hook}` (wrapper `{wrapper}`) cannot be used here: {error}. "
                "Choose fp16 or power_sgd, which work with every backend."
            ) from error


def _check_combination(hook: HookType, wrapper: HookType, state_options: Mapping[str, Any]) -> None:
    """Refuse choices that would have no effect or that torch cannot combine.

    Raises:
        ConfigError: If ``hook`` is that of torch which fails, ``wrapper`` is no wrapper or wraps nothing, or
            ``state_options`` meet a hook without state.
    """
    if hook == HookType.BATCHED_POWER_SGD:
        raise ConfigError(
            f"`comm_hook={hook}` fails in torch (as of 2.13), with an `AssertionError` in the first step that it "
            "compresses. Use `comm_hook=power_sgd`."
        )
    if wrapper != HookType.NO and wrapper not in _WRAPPERS:
        raise ConfigError(f"`comm_wrapper` must be one of no, fp16, bf16, got `{wrapper}`.")
    if wrapper != HookType.NO and hook == HookType.NO:
        raise ConfigError(
            f"`comm_wrapper={wrapper}` wraps no hook. Choose a `comm_hook`, or drop `comm_wrapper`."
        )
    if state_options and hook != HookType.POWER_SGD:
        raise ConfigError(
            f"`comm_state_option` has no effect with `comm_hook={hook}`, which keeps no state. "
            "Drop it, or choose power_sgd."
        )


def restart(state: object) -> None:
    """Make the state of a hook forget what belongs to the buckets of a reducer that is no more."""
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    if isinstance(state, PowerSGDState):
        state.iter = 0
        for memory in (state.error_dict, state.p_memory_dict, state.q_memory_dict):
            memory.clear()


def _hook(hook: HookType) -> Hook:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    hooks: dict[HookType, Hook] = {
        HookType.FP16: default_hooks.fp16_compress_hook,
        HookType.BF16: default_hooks.bf16_compress_hook,
        HookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
    }
    return hooks[hook]


def _wrapper(wrapper: HookType) -> Callable[[Hook], Hook]:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrappers: dict[HookType, Callable[[Hook], Hook]] = {
        HookType.FP16: default_hooks.fp16_compress_wrapper,
        HookType.BF16: default_hooks.bf16_compress_wrapper,
    }
    return wrappers[wrapper]


def _state(options: Mapping[str, Any]) -> object:
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    known = tuple(inspect.signature(PowerSGDState).parameters)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"`comm_state_option` has no `{name}`. Known to `{HookType.POWER_SGD}`: {', '.join(known)}."
                + did_you_mean(name, known)
            )
    return PowerSGDState(**{"process_group": None, **options})
