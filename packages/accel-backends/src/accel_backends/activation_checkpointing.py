"""Computes what is inside a block again in the backward pass, so that its activations need not be kept."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from accel_backends.wrapped_forward import WrappedForward
from accel_state.errors import ConfigError

Bind = Callable[[Callable[..., Any]], Callable[..., Any]]
_library_autocast: Bind | None = None
"""Of the process, as the autocast of Transformer Engine is; and torch's compiler traces no `ContextVar`."""

_RESPECTS_HOOKS = "respect_saved_tensors_hooks"
_KEEPS_RESULTS_IN_PLACE: dict[str, Any] = (
    {_RESPECTS_HOOKS: False} if _RESPECTS_HOOKS in inspect.signature(checkpoint).parameters else {}
)
"""Stops `checkpoint` from offloading kept results too, which a release after torch 2.15 will do by default."""


class CheckpointedForward(WrappedForward):
    """A forward that keeps its inputs only; the state of the random generators is kept for the second run.

    A cache of keys and values is not passed on while training: the second run would write to it again. A module in
    evaluation mode that gets one runs without checkpointing.

    Args:
        original: The forward to run.
        module: The module that it is the forward of.
        offloads_inputs: Keep the inputs in the memory of the CPU.
        is_selective: Keep the results of attention and of every second matrix product too, the costliest to compute;
            they stay on their device.
        bind: Called in each forward; returns a function that runs twice as it would now.
        is_traceable: Whether torch can compile it as a whole, and not what it runs alone.
    """

    def __init__(
        self,
        original: Callable[..., Any],
        *,
        module: nn.Module,
        offloads_inputs: bool = False,
        is_selective: bool = False,
        bind: Bind | None = None,
        is_traceable: bool = True,
    ) -> None:
        super().__init__(original)
        self.module = module
        self.bind = bind
        self.is_traceable = is_traceable and not offloads_inputs  # torch traces no `save_on_cpu`
        self.offloads_inputs = offloads_inputs
        self.is_selective = is_selective

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        caches = [value for value in (*args, *kwargs.values()) if _is_cache(value)]
        if caches and torch.is_grad_enabled():
            if not self.module.training:
                return self.original(*args, **kwargs)
            _check_empty(caches, self.module)
            args = tuple(None if _is_cache(value) else value for value in args)
            kwargs = {name: None if _is_cache(value) else value for name, value in kwargs.items()}
        keeping: AbstractContextManager[Any] = nullcontext()
        if self.offloads_inputs:  # The host waits for each copy to the CPU.
            keeping = torch.autograd.graph.save_on_cpu(pin_memory=torch.accelerator.is_available())
        options: dict[str, Any] = {}
        if self.is_selective:
            options = {"context_fn": _keep_costly_results, **_KEEPS_RESULTS_IN_PLACE}
        with keeping:
            forward = self.original if self.bind is None else self.bind(self.original)
            if _library_autocast is not None:
                forward = _library_autocast(forward)
            return checkpoint(forward, *args, use_reentrant=False, **options, **kwargs)


@contextmanager
def recomputed_within(bind: Bind) -> Iterator[None]:
    """Recompute what runs in the block in the autocast of a library: ``bind`` returns a forward that enters it."""
    global _library_autocast
    outer, _library_autocast = _library_autocast, bind
    try:
        yield
    finally:
        _library_autocast = outer


def checkpoint_units(modules: Sequence[nn.Module], **settings: Any) -> None:
    """Let the forward of each module keep its inputs only; modules that do so already stay as they are.

    The settings are those of `CheckpointedForward`.

    Raises:
        ConfigError: If there are none, since every activation would be kept.
    """
    if not modules:
        raise ConfigError(
            "`activation_checkpointing` has no effect on this model, of which no part is a unit. Name its units, by "
            "`auto_wrap_policy` or `parallel_plan` in `FullyShardedDataParallelPlugin`, or leave it off."
        )
    for module in modules:
        if not isinstance(module.forward, CheckpointedForward):
            module.forward = CheckpointedForward(module.forward, module=module, **settings)


def _is_cache(value: Any) -> bool:
    """Whether ``value`` is a cache of keys and values that a layer writes to, as in transformers."""
    return not isinstance(value, torch.Tensor) and hasattr(value, "get_seq_length")


def _check_empty(caches: Sequence[Any], module: nn.Module) -> None:
    if any(int(cache.get_seq_length()) for cache in caches):
        raise ConfigError(
            f"The {type(module).__name__} got `past_key_values` with content, which `activation_checkpointing` would "
            "write to twice. Pass `use_cache=False`, or turn activation checkpointing off to train after a prefix."
        )


def _keep_costly_results() -> Any:
    """Return what `checkpoint` takes to keep some results: see `CheckpointedForward`."""
    aten = torch.ops.aten
    products = {aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default}
    num_products = {False: 0, True: 0}  # in the forward pass, and when it is run again

    def policy(context: Any, operation: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if operation in products:
            num_products[context.is_recompute] += 1
            is_kept = num_products[context.is_recompute] % 2 == 1
        else:
            is_kept = str(operation).startswith("aten._scaled_dot_product_")
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]
