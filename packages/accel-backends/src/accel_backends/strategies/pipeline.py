"""Pipeline parallelism: each rank trains a stage of the model, and micro-batches pass through the stages."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.pipelining.cutting import balanced_starts
from accel_backends.pipelining.gathering import whole_model_state, whole_optimizer_state
from accel_backends.pipelining.stages import StagedModel
from accel_backends.pipelining.training import LossFunction, PipelineTraining
from accel_backends.state_placement import place_optimizer_state
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.protocol import Capabilities
from accel_backends.strategies.torch_strategy import TorchStrategy
from accel_backends.transforms.protocol import apply_transforms
from accel_state.enums import DynamoBackend
from accel_state.errors import ConfigError, StateError
from accel_state.parallelism_handlers import PipelineParallelConfig

_ADVICE = (
    "Under pipeline parallelism each process has a part of the model only, and micro-batches pass through all of them "
    "at once. Call `accelerator.forward_backward(model, batch, loss_fn)`; `loss_fn(model, batch)` returns the loss."
)


class PipelineStrategy(TorchStrategy):
    """One stage of each model per rank; all ranks read the same batches.

    A model is whole on every rank, on the CPU, until the first batch shows what each stage computes with. Parameters of
    other stages then keep their shapes and lose their values.
    """

    name: ClassVar[str] = "pipeline"
    capabilities: ClassVar[Capabilities] = Capabilities(shards_parameters=True, mesh_axes=frozenset({"pp"}))

    def setup(self, context: StrategyContext) -> None:
        """Take in the run.

        Raises:
            ConfigError: If models are to be compiled.
        """
        super().setup(context)
        if context.dynamo is not None and context.dynamo.backend != DynamoBackend.NO:
            raise ConfigError("Stages of a pipeline cannot be compiled yet. Leave `dynamo_backend` out.")
        self._settings = context.pipeline or PipelineParallelConfig()
        self._backward_group = dist.new_group()
        self._pipelines: weakref.WeakKeyDictionary[nn.Module, PipelineTraining] = weakref.WeakKeyDictionary()
        self._num_steps = 1
        context.precision.share_overflows()

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform one model and choose its stages; its parameters stay where they are until the first batch."""
        if model in self._pipelines:
            return model
        model = apply_transforms(model, self._transforms, evaluation_mode=evaluation_mode)
        points = self._settings.split_points
        num_stages = self.context.layout.pp
        starts = balanced_starts(model, num_stages) if points == "auto" else list(points)
        if len(starts) != num_stages - 1:
            raise ConfigError(
                f"`split_points` of `pp_handler` names {len(starts)} modules, but {num_stages} stages need "
                f"{num_stages - 1}: one for each but the first."
            )
        pipeline = PipelineTraining(
            StagedModel(model, starts, device=self.context.device),
            self._settings,
            device=self.context.device,
            backward_group=self._backward_group,
            backward=self._backward_of_micro_batch,
        )
        self._pipelines[model] = pipeline
        model.register_forward_pre_hook(partial(_refuse_call, weakref.ref(pipeline)))
        return model

    def forward_backward(
        self, model: nn.Module, batch: Any, loss_fn: LossFunction, *, num_steps: int = 1
    ) -> torch.Tensor:
        """Compute the gradients of ``loss_fn(model, batch) / num_steps``, or the loss alone without gradients.

        All ranks together; each gives the same batch.

        Returns:
            The loss of the batch, the same on every rank.
        """
        pipeline = self._pipelines.get(model)
        if pipeline is None:
            raise ConfigError(
                f"The {type(model).__name__} was not prepared. Pass what `accelerator.prepare` returned."
            )
        self._num_steps = num_steps
        is_first = not pipeline.staged.users
        loss = pipeline.run(model, batch, loss_fn)
        if is_first:
            self._drop_states(pipeline.staged)
        if torch.is_grad_enabled() and self.context.gradient.sync_gradients:
            self._add_up_shared(pipeline.staged)
        return loss

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Refuse: a loss on one rank has no way back through the stages of the others.

        Raises:
            StateError: With what to call in its place.
        """
        raise StateError(f"`backward` cannot train a pipeline. {_ADVICE}")

    def _backward_of_micro_batch(self, loss: torch.Tensor) -> None:
        super().backward(loss, num_steps=self._num_steps)

    @torch.no_grad()
    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the norm of the gradients of all stages together and return what it was. Communicates: all ranks."""
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        shared = {id(tensor) for staged in self._staged() for tensor in _shared_before(staged, self._stage)}
        own = [one.grad for one in chosen if one.grad is not None and id(one) not in shared]
        norm = torch.nn.utils.get_total_norm(own, norm_type).to(self.context.device, torch.float32)
        norms = [torch.empty_like(norm) for _ in range(self.context.topology.world_size)]
        dist.all_gather(norms, norm)
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        torch.nn.utils.clip_grads_with_norm_(chosen, max_norm, total)
        return total

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state on the CPU, on every rank. Communicates: all ranks."""
        return self.local_model_state(model)

    def local_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state on the CPU, on every rank. Communicates: all ranks."""
        pipeline = self._pipelines.get(model)
        state = self.unwrap(model).state_dict(keep_vars=True)
        return whole_model_state(state, None if pipeline is None else pipeline.staged)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a whole state, of which every rank keeps its stage."""
        pipeline = self._pipelines.get(model)
        with ExitStack() as stack:
            if pipeline is not None:
                stack.enter_context(pipeline.staged.whole())
            return super().load_model_state(model, state, strict=strict)

    def optimizer_state(
        self, optimizer: torch.optim.Optimizer, model: nn.Module | None = None
    ) -> dict[str, Any]:
        """Return the whole state on the CPU, on every rank. Communicates: all ranks."""
        return self.local_optimizer_state(optimizer, model)

    def local_optimizer_state(
        self, optimizer: torch.optim.Optimizer, model: nn.Module | None = None
    ) -> dict[str, Any]:
        """Return the whole state on the CPU, on every rank. Communicates: all ranks."""
        return whole_optimizer_state(self.bare_optimizer(optimizer).state_dict())

    def load_optimizer_state(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], model: nn.Module | None = None
    ) -> None:
        """Load a whole state, of which every rank keeps that of its stage."""
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        elsewhere = {number for number, one in enumerate(parameters) if self._is_elsewhere(one)}
        own = {number: value for number, value in state["state"].items() if number not in elsewhere}
        optimizer.load_state_dict({**state, "state": own})

    @property
    def _stage(self) -> int:
        return self.context.topology.rank

    def _staged(self) -> Iterator[StagedModel]:
        return (pipeline.staged for pipeline in self._pipelines.values())

    def _is_elsewhere(self, parameter: torch.Tensor) -> bool:
        return any(staged.is_elsewhere(parameter) for staged in self._staged())

    def _drop_states(self, staged: StagedModel) -> None:
        """Forget what optimizers hold for parameters of other stages, and place the rest with its parameters."""
        for prepared in self._optimizers:
            optimizer = self.bare_optimizer(prepared)
            for parameter in [one for one in optimizer.state if staged.is_elsewhere(one)]:
                del optimizer.state[parameter]
            place_optimizer_state(optimizer)

    def _add_up_shared(self, staged: StagedModel) -> None:
        """Give each stage that computes with a shared parameter the sum of all their gradients. All ranks together."""
        for found, users in zip(staged.tensors, staged.users, strict=True):
            if len(users) < 2 or not found.tensor.requires_grad:
                continue
            gradient = found.tensor.grad
            total = torch.zeros_like(found.tensor).contiguous() if gradient is None else gradient.clone()
            dist.all_reduce(total)
            if self._stage in users:
                found.tensor.grad = total


def _shared_before(staged: StagedModel, stage: int) -> Iterator[torch.Tensor]:
    """Yield the tensors that an earlier stage computes with too, which counts their gradients."""
    for found, users in zip(staged.tensors, staged.users, strict=False):
        if users and min(users) < stage:
            yield found.tensor


def _refuse_call(
    pipeline: weakref.ref[PipelineTraining], module: nn.Module, arguments: tuple[Any, ...]
) -> None:
    known = pipeline()
    if known is not None and not known.is_running:
        raise StateError(f"The model cannot be called by itself. {_ADVICE}")
