"""A model of which a rank runs some stages: the model itself, with the blocks of other stages passed through.

Every rank runs the model's own Python code. Masks and rotary tables are computed on each rank; between stages travels
what blocks return, and the forward ends where the next stage begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_backends.fsdp.values import replace_tensor
from accel_backends.pipeline.stage_modules import (
    Absent,
    Entry,
    Exit,
    PassThrough,
    StageEnd,
    StageRun,
    filled,
    is_elsewhere,
)
from accel_backends.plans.stages import Stages
from accel_ops.named_tensors import NamedTensor, named_tensors, walk_modules
from accel_state.errors import ConfigError

_SWITCHES = ("output_attentions", "output_hidden_states", "output_router_logits")
"""Arguments and settings of transformers' models that collect values over all layers."""


@dataclass(frozen=True, slots=True)
class StageOutput:
    """What a stage computed: values for the next stage, or from the last one the result of the call."""

    values: tuple[torch.Tensor | None, ...] = ()
    result: Any = None


class StagedModel:
    """A model and the stages of it that this rank runs.

    Args:
        model: The model.
        stages: Its stages, which rank ``place`` of the pipeline and every ``num_ranks``th after it runs.
        device: Where this rank computes.
        place: The place of this rank in the pipeline.
        num_ranks: Ranks of the pipeline.
    """

    def __init__(
        self, model: nn.Module, stages: Stages, *, device: torch.device, place: int, num_ranks: int
    ) -> None:
        self.model = model
        self.stages = stages
        self.num_stages = stages.num_stages
        self.num_ranks = num_ranks
        self.tensors = named_tensors(model)
        self.users = tuple(map(stages.of, self.tensors))
        """For each tensor, the stages that compute with it."""
        self.holders = tuple(frozenset(stage % num_ranks for stage in users) for users in self.users)
        """The same as places of ranks in the pipeline."""
        self.run_state = StageRun()
        self._numbers = {id(found): number for number, found in enumerate(self.tensors)}
        self._elsewhere = {n for n, places in enumerate(self.holders) if place not in places}
        self._device = device
        self._firsts = {block.stage: block for block in reversed([*stages.blocks.values()])}
        self._swaps: dict[int, list[tuple[dict[str, nn.Module | None], str, nn.Module]]] = {}

    def users_of(self, found: NamedTensor) -> frozenset[int]:
        """Return the stages that compute with one of the `tensors`."""
        return self.users[self._numbers[id(found)]]

    def is_held(self, found: NamedTensor) -> bool:
        """Whether this rank has the values of one of the `tensors`."""
        return self._numbers[id(found)] not in self._elsewhere

    def is_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether a parameter or buffer of the model is used by the stages of other ranks alone."""
        return any(self.tensors[number].tensor is tensor for number in self._elsewhere)

    def drop(self, found: NamedTensor) -> None:
        """Free the memory of a tensor of other stages; it keeps its shape, and stays the same object if it can."""
        hollow = torch.zeros((), dtype=found.tensor.dtype, device=self._device).expand(found.tensor.shape)
        if found.tensor.is_meta:
            replace_tensor(found, hollow)
        else:
            found.tensor.data = hollow

    def refresh(self) -> None:
        """Note the tensors that the modules have now, after some of them were replaced."""
        for found in self.tensors:
            found.tensor = _current(found)

    def trained_in(self, stage: int) -> list[nn.Parameter]:
        """Return the trained parameters of a stage of this rank, as its modules have them now."""
        tensors = [
            _current(found) for found, users in zip(self.tensors, self.users, strict=True) if stage in users
        ]
        return [one for one in tensors if isinstance(one, nn.Parameter) and one.requires_grad]

    def handed_on(self, stage: int) -> tuple[str, ...]:
        """Return the names of the arguments that a stage sends to the next."""
        return self._firsts[stage + 1].handed_on

    def run(
        self, stage: int, call: Callable[[], Any], received: Sequence[torch.Tensor | None] = ()
    ) -> StageOutput:
        """Run one stage of ``call``, which calls the model. No communication.

        Raises:
            ConfigError: If the stage needs what another one computes, and no block sends.
        """
        self.run_state.received = dict(zip(self.handed_on(stage - 1), received, strict=True)) if stage else {}
        self.run_state.absent = []
        try:
            with self._swapped(stage):
                result = filled(call())
        except StageEnd as end:
            return StageOutput(tuple(end.values))
        finally:
            self.run_state.received = {}
        if stage < self.num_stages - 1:
            raise self.run_state.missing(
                f"a call of `{self.stages.starts[stage]}`, with which the next stage begins,"
            )
        if is_elsewhere(result):
            raise self.run_state.missing("a value for the result of the model")
        return StageOutput(result=result)

    @contextmanager
    def _swapped(self, stage: int) -> Iterator[None]:
        """Put other modules in place of those of other stages in the block."""
        # Why: docs/decisions/0015-stages-pass-other-blocks-through.md
        if stage not in self._swaps:
            self._swaps[stage] = list(self._modules_of(stage))
        before = [(modules, key, modules[key]) for modules, key, _ in self._swaps[stage]]
        try:
            for modules, key, module in self._swaps[stage]:
                modules[key] = module
            yield
        finally:
            for modules, key, original in before:
                modules[key] = original

    def _modules_of(self, stage: int) -> Iterator[tuple[dict[str, nn.Module | None], str, nn.Module]]:
        run, blocks = self.run_state, self.stages.blocks
        modules = dict(walk_modules(self.model))
        for name, module in modules.items():
            parent, _, key = name.rpartition(".")
            replacement: nn.Module | None = None
            if (block := blocks.get(module)) is not None:
                is_first = block is self._firsts[block.stage]
                if is_first and block.stage == stage + 1:
                    replacement = Exit(module, run, name, block)
                elif block.stage != stage:
                    replacement = PassThrough(module, run, name, block)
                elif is_first or stage:
                    replacement = Entry(module, run, name, block, is_first=is_first)
            elif stage not in self.stages.ends.get(name, {stage}):
                replacement = Absent(module, run, name)
            if replacement is not None:
                yield modules[parent]._modules, key, replacement


def _current(found: NamedTensor) -> torch.Tensor:
    module, key = found.places[0]
    tensor: torch.Tensor = module._parameters[key] if key in module._parameters else module._buffers[key]  # type: ignore[assignment]
    return tensor


def refuse_collected(model: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
    """Raise an error if a call of a transformers model collects values over all layers; a forward pre-hook."""
    config = getattr(model, "config", None)
    for name in _SWITCHES:
        if kwargs.get(name, getattr(config, name, False)):
            raise ConfigError(
                f"`{name}` collects values of all layers, but a rank of a pipeline has those of its stage. Leave it "
                "out of the call and of the config of the model."
            )
