"""Computes what is inside a block again in the backward pass, so that its activations need not be kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from accel_state.errors import ConfigError


class CheckpointedForward:
    """A forward that keeps its inputs only; the state of the random generators is kept for the second run.

    A plain object in the module's ``__dict__``, so that no name of a parameter or submodule changes.

    Args:
        original: The forward to run.
        offloads_inputs: Keep the inputs in the memory of the CPU.
    """

    def __init__(self, original: Callable[..., Any], *, offloads_inputs: bool = False) -> None:
        self.original = original
        self.offloads_inputs = offloads_inputs

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.original

    @property
    def __name__(self) -> str:
        return getattr(self.original, "__name__", "forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        keeping: AbstractContextManager[Any] = nullcontext()
        if self.offloads_inputs:
            keeping = torch.autograd.graph.save_on_cpu(pin_memory=torch.accelerator.is_available())
        with keeping:
            return checkpoint(self.original, *args, use_reentrant=False, **kwargs)


def checkpoint_units(modules: Sequence[nn.Module], *, offloads_inputs: bool = False) -> None:
    """Let the forward of each module keep its inputs only; modules that do so already stay as they are.

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
            module.forward = CheckpointedForward(module.forward, offloads_inputs=offloads_inputs)
