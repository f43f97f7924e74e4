"""The root of the sharded stages of a rank, through which they gather parameters and reduce gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


class StageRoot(nn.Module):
    """The root of the sharded stages of a rank: its forward is a run of one of them.

    A run goes from what the stage is handed to what it hands on, so `fully_shard` sees these as inputs and outputs.
    What no unit has is gathered with each of the stages.

    Args:
        model: The whole model.
        device: Where this rank computes.
    """

    def __init__(self, model: nn.Module, *, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self._device = device
        self._units: dict[int, list[FSDPModule]] = {}
        self._whole: dict[int, list[nn.Parameter]] = {}

    def add_unit(self, stage: int, unit: nn.Module) -> None:
        """Note a sharded unit whose parameters one stage alone computes with."""
        self._units.setdefault(stage, []).append(cast(FSDPModule, unit))

    def add_whole(self, stage: int, parameter: nn.Parameter) -> None:
        """Note a trained parameter of a stage that is not sharded."""
        self._whole.setdefault(stage, []).append(parameter)

    def leave_units_to_themselves(self) -> None:
        """Let the root gather no unit ahead in a backward pass; torch would take the last one that ran in any stage."""
        root = cast(FSDPModule, self)
        root.set_modules_to_backward_prefetch([root])

    def forward(
        self, run: Callable[[Sequence[torch.Tensor]], object], received: Sequence[torch.Tensor]
    ) -> object:
        """Return what ``run`` returns for the received tensors."""
        return run(received)

    @contextmanager
    def ending(self, stage: int | None) -> Iterator[None]:
        """Let backward passes in the block be those of one stage; None: let none of them end.

        At its end a backward pass reduces gradients and frees gathered parameters, of all units that the root has.
        Those of other stages stay as they are in the block.
        """
        resting = [unit for number, units in self._units.items() if number != stage for unit in units]
        if stage is None:
            resting.append(cast(FSDPModule, self))
        _let_end(resting, False)
        try:
            yield
        finally:
            _let_end(resting, True)

    def gather(self, stage: int) -> None:
        """Gather the parameters of a stage. The ranks that share it call this together."""
        for unit in (cast(FSDPModule, self), *self._units.get(stage, ())):
            unit.unshard()

    def finish(self, stage: int) -> None:
        """Reduce the gradients that parameters of a stage got without a backward pass that ended, and free these.

        A backward pass through the root alone does it, whose gradients are zeros. The ranks that share the stage call
        this together.
        """
        start = torch.zeros((), device=self._device, requires_grad=True)
        whole = [parameter for parameter in self._whole.get(stage, ()) if parameter.grad is not None]

        def run(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
            return tensors[0] + sum(0 * parameter.sum() for parameter in whole)

        with self.ending(stage):
            self(run, [start]).backward()


def _let_end(units: Sequence[FSDPModule], ends: bool) -> None:
    for unit in units:
        unit.set_requires_gradient_sync(ends, recurse=False)
        unit.set_reshard_after_backward(ends, recurse=False)
