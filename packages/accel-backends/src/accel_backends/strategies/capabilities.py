"""What strategies can do: capabilities, features that some lack, and optional abilities."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol, runtime_checkable

import torch
from torch import nn

from accel_state.errors import ConfigError


class Sync(enum.Enum):
    """When the backward pass reduces gradients over the ranks."""

    NOW = "now"
    """In every backward."""
    IN_SHARDS = "in_shards"
    """Reduce-scatter in every backward; all-reduce over replicas at the end (HSDP). No rank holds full gradients."""
    LATER = "later"
    """Not at all; each rank accumulates local gradients until a later backward reduces them."""


class Feature(enum.StrEnum):
    """Features that not every strategy supports."""

    CLIP_BY_VALUE = "clip_grad_value_"
    COMMUNICATION_HOOK = "comm_hook"
    COMPILE = "torch.compile"
    JOIN = "join_uneven_inputs"
    LOCAL_SGD = "LocalSGD"
    SAVE_MODEL = "save_model"
    SEVERAL_MODELS = "several models"


ONLY_DDP_HAS_HOOKS = "it reduces gradients by itself. Leave the hook out, or use `ddp`."
NOT_APART = "each rank would train a whole model of its own for a while. Use `ddp`, or pass `enabled=False`."


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What callers need to know about a strategy, so that no code branches on its name.

    Attributes:
        shards_parameters: A rank holds shards of the parameters; a full state must be gathered by all ranks
            together, and ranks cannot train independently for a while.
        needs_optimizer: A model that is prepared without an optimizer can only compute outputs; to be trained, it is
            prepared again together with one.
        accumulation: How gradients are reduced in micro-batches that end no accumulation; `Sync.NOW` if
            no reduction can be left out.
        mesh_axes: Axes of `ParallelismConfig` along which the strategy splits the work; others may not be on.
        takes_exchanged_layers: Layers of a model may be swapped for those of a library for 8-bit arithmetic.
        sp_backend: The `sp_backend` of `ParallelismConfig` that shards sequences along the axis ``sp``.
        devices: Types of devices that the strategy trains on; None: all but those that have a strategy of their own.
        needs_collectives: Needs a process group, even with a single process.
        lacks: Features that are not supported, some of them only with several processes, each with the reason and what
            to do instead.
    """

    shards_parameters: bool = False
    needs_optimizer: bool = False
    accumulation: Sync = Sync.NOW
    mesh_axes: frozenset[str] = frozenset({"dp_replicate"})
    takes_exchanged_layers: bool = False
    sp_backend: str = "torch"
    devices: frozenset[str] | None = None
    needs_collectives: bool = True
    lacks: Mapping[Feature, str] = field(default_factory=dict, hash=False)

    def check(self, feature: Feature, *, strategy: str) -> None:
        """Check that the strategy supports a feature.

        Raises:
            ConfigError: If not; with the reason, and what to do instead.
        """
        if feature in self.lacks:
            self.refuse(feature, strategy=strategy)

    def refuse(self, feature: Feature, *, strategy: str) -> NoReturn:
        """Raise the error for a feature that is not supported.

        Raises:
            ConfigError: Always, with the reason, and what to do instead.
        """
        raise ConfigError(
            f"`{feature}` is not possible with the strategy `{strategy}`: {self.lacks[feature]}"
        )


@runtime_checkable
class ForwardBackward(Protocol):
    """The ability of strategies that run forward and backward of a batch together."""

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: Callable[[nn.Module, Any], torch.Tensor],
        *,
        num_steps: int = 1,
        num_items: Callable[[Any], float | torch.Tensor] | None = None,
        weight: float = 1.0,
    ) -> torch.Tensor:
        """Compute the gradients of ``loss_fn(model, batch) / num_steps``, and return the loss. All ranks together.

        Args:
            model: The prepared model.
            batch: Its rows may be divided among several calls of ``loss_fn``.
            loss_fn: Returns a mean loss.
            num_steps: Micro-batches of the window.
            num_items: Counts the items that the loss of a part of the batch is a mean over; None: its rows.
            weight: Multiplies the loss that gradients are computed of.
        """
