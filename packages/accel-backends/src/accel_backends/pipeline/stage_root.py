"""The root module of the sharded stages of a rank, with which they all-gather parameters and reduce gradients."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from accel_backends.fsdp.replicated import ReplicatedParameters


class Reductions(enum.Enum):
    """Which gradients are reduced after a backward pass of a stage."""

    NONE = "none"
    UNITS = "units"
    """Those of the units of the stage."""
    ALL = "all"
    """Those of the root, too, which all stages of the rank add to."""


class StageRoot(nn.Module):
    """The root of the sharded stages of a rank: its forward is a run of one of them.

    A run starts with the tensors that the stage receives and ends with those that it sends, so `fully_shard` sees these
    as inputs and outputs. Parameters that are in no unit are gathered with each of the stages.

    Args:
        model: The full model.
        device: The device of this rank.
    """

    def __init__(self, model: nn.Module, *, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._units: dict[int, list[FSDPModule]] = {}
        self.replicated: ReplicatedParameters | None = None
        """Those that are not sharded, which average their gradients after each batch."""

    def add_unit(self, stage: int, unit: nn.Module) -> None:
        """Register a sharded unit of one stage."""
        self._units.setdefault(stage, []).append(cast(FSDPModule, unit))

    def disable_backward_prefetch(self) -> None:
        """Disable prefetching by the root in backward: torch would gather the last unit that ran in any stage."""
        root = cast(FSDPModule, self)
        root.set_modules_to_backward_prefetch([root])

    def forward(
        self, run: Callable[[Sequence[torch.Tensor]], object], received: Sequence[torch.Tensor]
    ) -> object:
        """Return what ``run`` returns for the received tensors."""
        return run(received)

    @contextmanager
    def ending(self, stage: int | None, reductions: Reductions) -> Iterator[None]:
        """Restrict the end of backward passes in the block to one stage; None: no stage.

        `fully_shard` frees parameters and reduces gradients of all units of a root when a backward pass ends.
        """
        root, has_units = cast(FSDPModule, self), reductions is not Reductions.NONE
        for number, units in self._units.items():
            is_ending = number == stage
            _set_end(units, reduces=is_ending and has_units, reshards=is_ending)
        _set_end([root], reduces=reductions is Reductions.ALL, reshards=stage is not None)
        try:
            yield
        finally:
            for units in (*self._units.values(), [root]):
                _set_end(units, reduces=True, reshards=True)

    def gather(self, stage: int) -> None:
        """All-gather the parameters of a stage. All ranks of the stage must call it."""
        for unit in (cast(FSDPModule, self), *self._units.get(stage, ())):
            unit.unshard()

    def finish(self, stage: int, reductions: Reductions) -> None:
        """Free the parameters of a stage, and reduce gradients, after a backward pass in `ending(None)`.

        A backward pass through the root alone does it, whose gradients are zeros. All ranks of the stage must call it.
        """
        start = torch.zeros((), device=self._device, requires_grad=True)
        with self.ending(stage, reductions):
            self(lambda tensors: tensors[0] + 0, [start]).backward()

    def drop_unreduced(self) -> None:
        """Drop gradients of a batch that failed: no optimizer knows of them before they are reduced."""
        for module in self.modules():
            # torch 2.13 drops them in no public way.
            group: Any = (
                module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            )
            for parameter in () if group is None else group.fsdp_params:
                parameter.unsharded_accumulated_grad = None
                if (unsharded := getattr(parameter, "_unsharded_param", None)) is not None:
                    unsharded.grad = None


def _set_end(units: Iterable[FSDPModule], *, reduces: bool, reshards: bool) -> None:
    for unit in units:
        unit.set_requires_gradient_sync(reduces, recurse=False)
        unit.set_reshard_after_backward(reshards, recurse=False)
