"""How DDP packs gradients for the wire: the hooks and wrappers that come with torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from accel_state.enums import DDPCommunicationHookType as HookType
from accel_state.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Hook = Callable[..., Any]

WRAPPERS = frozenset({HookType.FP16, HookType.BF16})


def check_combination(hook: HookType, wrapper: HookType, state_options: Mapping[str, Any]) -> None:
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
    if wrapper != HookType.NO and wrapper not in WRAPPERS:
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


def register(
    model: DistributedDataParallel, *, hook: HookType, wrapper: HookType, state_options: Mapping[str, Any]
) -> None:
    """Make ``model`` send its gradients through ``hook``; call once on every rank, before the first backward.

    Raises:
        ConfigError: If torch has no such hook for the process group's backend (bf16 needs NCCL or XCCL), or
            no such option of its state.
    """
    if hook == HookType.NO:
        return
    function = _hook(hook)
    if wrapper != HookType.NO:
        function = _wrapper(wrapper)(function)
    state = _state(hook, state_options)
    try:
        model.register_comm_hook(state, function)
    except TypeError as error:
        raise ConfigError(
            f"The communication hook `{hook}` (wrapper `{wrapper}`) cannot be used here: {error}. "
            "Choose fp16 or power_sgd, which work with every backend."
        ) from error


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


def _state(hook: HookType, options: Mapping[str, Any]) -> object | None:
    if hook != HookType.POWER_SGD:
        return None
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    known = tuple(inspect.signature(PowerSGDState).parameters)
    for name in options:
        if name not in known:
            raise ConfigError(
                f"`comm_state_option` has no `{name}`. Known to `{hook}`: {', '.join(known)}."
                + did_you_mean(name, known)
            )
    return PowerSGDState(**{"process_group": None, **options})
