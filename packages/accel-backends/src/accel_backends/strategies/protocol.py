"""The protocol of strategies, independent of the engine."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, runtime_checkable

import torch
from torch import nn

from accel_backends.strategies.bundle import Bundle, Placement
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.strategies.context import StrategyContext


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


class Strategy(Protocol):
    """How models are placed, wrapped, synchronized and stepped.

    A member is constructed without arguments, set up once, and then used for all objects of the run. Methods
    that communicate say so; every rank must call those, in the same order. Methods for states take the user's model, as
    ``unwrap(model, keep_torch_compile=False)`` returns it, and the user's optimizer, as `bare_optimizer` does.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]

    @property
    def checkpoint_format(self) -> str:
        """Name of the `CheckpointFormat` in which models and optimizers are saved."""

    @property
    def has_gradients_in_parameters(self) -> bool:
        """Whether the gradients of an unfinished accumulation are those of the parameters, placed like them."""

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run.

        Raises:
            ConfigError: If the run has settings that this strategy or this machine does not support.
        """

    def prepare(
        self, bundle: Bundle, *, device_placement: Placement | None = None, evaluation_mode: bool = False
    ) -> Bundle:
        """Return the prepared objects in the same order. Every rank must call it; it may communicate."""

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place, convert, transform and wrap one model; without a wrapper for gradients in ``evaluation_mode``."""

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> torch.optim.Optimizer:
        """Return the optimizer that the user will hold."""

    def prepare_scheduler(self, scheduler: Any, *, optimizers: Sequence[torch.optim.Optimizer] = ()) -> Any:
        """Return the scheduler that the user will hold; ``optimizers`` are those prepared with it."""

    def share_sequences(self, loader: Any) -> Any:
        """Return a prepared loader of this rank's shard of each sequence if sequences are sharded; else ``loader``."""

    def share_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which ``buffers`` are this rank's shards of them if sequences are sharded.

        Args:
            buffers: Tensors of full sequences, changed in place.
            dims: Dimension of the tokens in each.
            no_restore: Those that need not be restored after the block.
        """

    def unwrap(
        self,
        model: nn.Module,
        *,
        keep_fp32_wrapper: bool = True,
        keep_torch_compile: bool = True,
        recursive: bool = False,
    ) -> nn.Module:
        """Return the user's model without the wrappers of `prepare_model`."""

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Compute gradients of ``loss / num_steps``, scaled by the precision; reduce them unless that is deferred."""

    def scale_gradients(self, models: Iterable[nn.Module], factor: float) -> None:
        """Multiply the complete gradients of ``models``."""

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context for forward and backward in which gradients are reduced as ``sync`` specifies."""

    def replaced_parameters(self) -> Iterable[torch.Tensor]:
        """Return parameters that `prepare_model` replaced in a model, and that optimizers may still have."""

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Clip the total norm of all (unscaled) gradients and return the norm before."""

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each (unscaled) gradient value."""

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the full state of ``model``, with the keys it had before it was prepared."""

    def local_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state of ``model`` on this rank: a `DTensor` for each sharded tensor.

        The tensors share the model's memory if possible.
        """

    def state_to_fill(self, model: nn.Module) -> dict[str, Any]:
        """Return the state as `local_model_state` does, as the destination of a checkpoint.

        A tensor that this rank must not read, or that gets its memory from `load_model_state`, is deferred.
        """

    def exported_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state like `local_model_state`, for other readers: in the dtypes that the model computes in."""

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a full state, or one from `local_model_state`.

        Returns missing and unexpected keys as `torch.nn.Module.load_state_dict` does.
        """

    def bare_optimizer(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimizer inside the wrappers of `prepare_optimizer`."""

    def optimizer_class(self, optimizer: torch.optim.Optimizer) -> type:
        """Return the class of the optimizer that the user made, for a prepared one; an engine may have replaced it."""

    def local_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state of ``optimizer`` on this rank: a `DTensor` for each sharded tensor.

        Parameters have numbers, in the order of `optimizer_parameters`.
        """

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> dict[str, torch.Tensor]:
        """Return the parameters of ``optimizer`` by their names in ``models``.

        Their states are sharded like them.
        """

    def optimizer_shapes(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Size]]:
        """Return the unsharded shapes of the parameters of ``optimizer``, by group, in the order of its full state."""

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, or one with tensors sharded like the parameters, which may be mapped from files."""

    def release(self) -> None:
        """Drop the references to everything prepared."""

    def join_uneven_inputs(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Return a context in which ranks may run out of batches at different times."""


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


@runtime_checkable
class HoldsParts(Protocol):
    """The ability of strategies whose ranks hold parts of states in a form of their own."""

    def parts_of_model(self, model: nn.Module) -> Mapping[str, Any]:
        """Return what this rank holds of a user's model."""

    def parts_of_optimizer(self, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """Return what this rank holds of the state of a user's optimizer. It may communicate."""
