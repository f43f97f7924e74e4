"""The objects of a run that have a state to save and restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from accel_backends import Precision, Strategy
from accel_backends.checkpoint_formats.choosing import format_called
from accel_backends.checkpoint_formats.protocol import CheckpointFormat
from accel_backends.stepping.stepper import Stepper
from accel_checkpoint.file_names import OPTIMIZER_NAME, SCHEDULER_NAME
from accel_checkpoint.saving.transaction import Description
from accel_data import PreparedLoader


@dataclass(frozen=True)
class Prepared:
    """All objects of a run that have a state, in the order in which they were prepared.

    Attributes:
        strategy: Saves and loads the states of models and optimizers.
        precision: Saves and loads the state of the gradient scaler.
        device: This rank's device.
        stepper: Holds the state of the gradient accumulation.
        models: Prepared models.
        optimizers: Prepared optimizers.
        schedulers: Prepared schedulers.
        loaders: Prepared loaders, by number.
        custom: Objects registered for checkpointing.
        active_loaders: The loaders that are being iterated over.
        format_name: The file format of models and optimizers; that of the strategy where it is empty.
    """

    strategy: Strategy
    precision: Precision
    device: torch.device
    stepper: Stepper
    models: Sequence[nn.Module] = ()
    optimizers: Sequence[torch.optim.Optimizer] = ()
    schedulers: Sequence[Any] = ()
    loaders: Mapping[int, Any] = field(default_factory=dict)
    custom: Sequence[Any] = ()
    active_loaders: Sequence[Any] = ()
    format_name: str = ""

    @property
    def device_index(self) -> int:
        """Index of this rank's device on its machine."""
        return self.device.index or 0

    @property
    def format(self) -> CheckpointFormat:
        """The file format of models."""
        return format_called(self.format_name or self.strategy.checkpoint_format)

    def model_of(self, optimizer: torch.optim.Optimizer) -> nn.Module | None:
        """Return the model whose parameters ``optimizer`` updates; of several, the one that shares most with it."""
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        shares = [sum(id(one) in stepped for one in model.parameters()) for model in self.models]
        return self.models[shares.index(max(shares))] if any(shares) else None

    def model_state(self, model: nn.Module) -> Mapping[str, Any]:
        """Return the state of a model as the format takes it."""
        strategy = self.strategy
        return (
            strategy.own_model_state(model) if self.format.is_per_rank else strategy.local_model_state(model)
        )

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """Return the state of an optimizer as the format takes it."""
        if self.format.is_per_rank:
            return self.strategy.own_optimizer_state(optimizer)
        return self.strategy.local_optimizer_state(optimizer, self.model_of(optimizer))

    def loaders_with_state(self) -> list[tuple[int, Any]]:
        """Return the loaders that have a state dict, with their number."""
        return [(n, one) for n, one in self.loaders.items() if callable(getattr(one, "state_dict", None))]

    def bare_models(self) -> list[nn.Module]:
        """Return the users' models, without wrappers."""
        return [self.strategy.unwrap(model, keep_torch_compile=False) for model in self.models]

    def description(self) -> Description:
        """Return the strategy, the format and the users' classes, which the manifest records for error messages."""
        return Description(
            strategy=self.strategy.name,
            model_format=self.format.name,
            objects={
                "models": [class_name(type(model)) for model in self.bare_models()],
                OPTIMIZER_NAME: [class_name(self.strategy.optimizer_class(one)) for one in self.optimizers],
                SCHEDULER_NAME: [class_name(type(getattr(one, "scheduler", one))) for one in self.schedulers],
                "custom": [class_name(type(one)) for one in self.custom],
            },
        )


def class_name(kind: type) -> str:
    """Return the qualified name of the user's class, with its module."""
    if issubclass(kind, FSDPModule):
        # `fully_shard` gives each module a class of its own, with the user's class as its second base.
        kind = kind.__bases__[1]
    return f"{kind.__module__}.{kind.__qualname__}"


def has_state_per_rank(loader: Any) -> bool:
    """Whether each rank has its own state of ``loader``."""
    return isinstance(loader, PreparedLoader) and loader.has_state_per_rank


def is_being_read(loader: Any, active: Sequence[Any]) -> bool:
    """Whether ``loader``, or a loader that skips some of its batches, is being iterated over."""
    if isinstance(loader, PreparedLoader):
        return any(loader.shares_progress_with(one) for one in active)
    return any(one is loader for one in active)
