"""Pipeline parallelism: each rank trains a stage of the model, and micro-batches pass through the stages."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.optimizer import place_optimizer_state
from accel_backends.pipelining.cutting import balanced_starts
from accel_backends.pipelining.early_loading import (
    EarlyOptimizerState,
    parameters_of,
    state_before_loading,
    take_early,
)
from accel_backends.pipelining.experts import make_experts_traceable
from accel_backends.pipelining.gathering import held_model_state, held_optimizer_state
from accel_backends.pipelining.holding import StageSharding, hold_stage
from accel_backends.pipelining.schedule_run import PipelinePlace
from accel_backends.pipelining.shared_gradients import add_up_shared, put_back_shared, take_shared
from accel_backends.pipelining.stage_root import StageRoot
from accel_backends.pipelining.stages import StagedModel
from accel_backends.pipelining.training import LossFunction, PipelineTraining
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.sources import resolve_plan
from accel_backends.sharding.clipping import scale_down, total_norm
from accel_backends.sharding.full_state import difference
from accel_backends.sharding.replicated import ReplicatedParameters
from accel_backends.strategies.capabilities import Capabilities, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.fsdp2 import FullyShardedStrategy
from accel_backends.strategies.sharded import SHARDS_LACK
from accel_backends.transforms.compile import compile_units
from accel_backends.transforms.own_random_numbers import own_random_numbers
from accel_backends.transforms.tensor_parallel import share_random_state
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import CheckpointError, ConfigError, StateError
from accel_state.parallelism_handlers import PipelineParallelConfig

_ADVICE = (
    "Under pipeline parallelism each process has a part of the model only, and micro-batches pass through all of them "
    "at once. Call `forward_backward(model, batch, loss_fn)` of the Accelerator or the strategy; "
    "`loss_fn(model, batch)` returns the loss."
)
_NOTHING = nullcontext()


class PipelineStrategy(FullyShardedStrategy):
    """Each rank, or each group of ranks over which it is sharded, trains one stage of the model.

    A model is whole on every rank, on the CPU, until the first batch shows what each stage computes with. Parameters of
    other stages then keep their shapes and lose their values; those of the own stage are sharded as `fsdp2` does it.
    """

    name: ClassVar[str] = "pipeline"
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        lacks=SHARDS_LACK,
        mesh_axes=frozenset({"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp", "ep"}),
    )

    @property
    def has_gradients_in_parameters(self) -> bool:
        """Gradients are complete after each batch."""
        return True

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run.

        Raises:
            ConfigError: If models are to be compiled, and the schedule cannot run what is compiled.
        """
        super().setup(context)
        config = context.parallelism
        self._handler = (config.pp_handler if config is not None else None) or PipelineParallelConfig()
        if context.dynamo is not None and self._handler.schedule not in ("gpipe", "1f1b"):
            raise ConfigError(
                f"The schedule `{self._handler.schedule}` cannot run compiled blocks. Choose `1f1b` or `gpipe`, or "
                "leave `dynamo_backend` out."
            )
        layout, rank = context.layout, context.topology.rank
        self._ranks_at = layout.groups(*(axis for axis in layout.sizes if axis != "pp"))
        ranks = layout.group_of(rank, "pp")
        has_rings = (self._handler.stages_per_rank or 1) > 1  # the last rank sends to the first
        num_lanes = 2 + len(ranks) % 2 if has_rings else 1
        self._place = PipelinePlace(
            ranks=ranks,
            index=layout.coordinate(rank)["pp"],
            group=dist.new_group(list(ranks), use_local_synchronization=True),
            forward_groups=[dist.new_group() for _ in range(num_lanes)] if num_lanes > 1 else [None],
            backward_groups=[dist.new_group() for _ in range(num_lanes)],
            num_pipelines=layout.world_size // len(ranks),
        )
        self._pipelines: weakref.WeakKeyDictionary[nn.Module, PipelineTraining] = weakref.WeakKeyDictionary()
        self._early: weakref.WeakKeyDictionary[torch.optim.Optimizer, EarlyOptimizerState] = (
            weakref.WeakKeyDictionary()
        )
        self._early_gradients: weakref.WeakKeyDictionary[PipelineTraining, dict[str, torch.Tensor]] = (
            weakref.WeakKeyDictionary()
        )
        self._shared_before: dict[int, torch.Tensor] = {}
        """Gradients of shared parameters from before the batch that is running."""
        self._num_steps = 1
        self._weight = 1.0

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform one model and choose its stages; its parameters stay where they are until the first batch."""
        if model in self._pipelines:
            return model
        is_sharded = self._place.num_pipelines > 1
        if not is_sharded:  # `fully_shard` casts by itself
            model = self.context.precision.convert(model)
        sharding = self._sharding(model) if is_sharded else None
        make_experts_traceable(model, self._parallel_plan(model))
        pipeline = PipelineTraining(
            StagedModel(
                model,
                self._starts(model),
                device=self.context.device,
                num_ranks=self.context.layout.pp,
            ),
            self._handler,
            place=self._place,
            device=self.context.device,
            hold=partial(self._hold, weakref.ref(model), sharding),
            root=None if sharding is None else sharding.root,
            scaled=self._scaled,
        )
        self._pipelines[model] = pipeline
        model.register_forward_pre_hook(partial(_refuse_call, weakref.ref(pipeline)))
        return model

    def _starts(self, model: nn.Module) -> list[str]:
        points = self._handler.split_points
        num_stages = self.context.layout.pp * (self._handler.stages_per_rank or 1)
        plan = self._parallel_plan(model)
        starts = balanced_starts(model, num_stages, plan=plan) if points == "auto" else list(points)
        if len(starts) != num_stages - 1:
            raise ConfigError(
                f"`split_points` of `pp_handler` names {len(starts)} modules, but {num_stages} stages need "
                f"{num_stages - 1}: one for each but the first."
            )
        return starts

    def _sharding(self, model: nn.Module) -> StageSharding:
        plan = self._plan(model, dynamo=None)  # compiled when it is known which units are here
        if plan.layers is not None and plan.layers.is_in_sequence:
            raise ConfigError(
                "The plan cuts sequences between layers, by styles whose names end in `_sequence`, which stages of a "
                "pipeline cannot hand on. Use the styles of the same names without `_sequence`."
            )
        return StageSharding(StageRoot(model, device=self.context.device), plan, self._settings)

    def _hold(self, known: weakref.ref[nn.Module], sharding: StageSharding | None) -> None:
        """Load the values of this stage into the model, and rebind optimizers to its parameters."""
        model = known()
        assert model is not None
        staged = self._pipelines[model].staged
        before = [found.tensor for found in staged.tensors]
        with staged.hooks.noted():
            hold_stage(
                staged,
                device=self.context.device,
                files=self._plugin.load_weights_from,
                sharding=sharding,
            )
            if sharding is not None:
                self._finish_sharding(model, staged, sharding)
                make_experts_traceable(model, self._parallel_plan(model))
        if self.context.dynamo is not None:
            compile_units(self._units_here(model, staged), self.context.dynamo)
        self._follow_replaced(before, staged)
        for prepared in self._optimizers:
            optimizer = self.bare_optimizer(prepared)
            if (early := self._early.pop(optimizer, None)) is not None:
                early.give(optimizer)
            for parameter in [one for one in optimizer.state if staged.is_elsewhere(one)]:
                del optimizer.state[parameter]
            place_optimizer_state(optimizer)
        if gradients := self._early_gradients.pop(self._pipelines[model], None):
            super().restore_gradients([model], {f"0.{name}": one for name, one in gradients.items()})
            if torch.is_grad_enabled():  # within `forward_backward`, which took those of before the batch
                self._shared_before |= take_shared(staged)

    def _units_here(self, model: nn.Module, staged: StagedModel) -> list[nn.Module]:
        """Return the units of which this rank has all parameters; code that is compiled takes no placeholders."""
        units = [model.get_submodule(name) for name in self._parallel_plan(model).units]
        return [unit for unit in units if not any(map(staged.is_elsewhere, unit.parameters()))]

    def _parallel_plan(self, model: nn.Module) -> ParallelPlan:
        return resolve_plan(model, given=self._plugin.parallel_plan, policy=self._plugin.units_policy())

    def _finish_sharding(self, model: nn.Module, staged: StagedModel, sharding: StageSharding) -> None:
        self._models.add(sharding.root)
        names = set(sharding.plan.whole)
        here = [one for one in staged.tensors if staged.is_held(one)]
        whole = (model.get_parameter(one.names[0]) for one in here if one.names[0] in names)
        self._whole[model] = ReplicatedParameters(None, whole, self._mesh)
        if self._layer_mesh is not None:
            share_random_state(self._layer_mesh, self.context.device)
        policy = self._settings.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            # What `fully_shard` does for the inputs of its root, which is another one here.
            model.register_forward_pre_hook(partial(_cast_inputs, dtype=policy.param_dtype), with_kwargs=True)
        self._cast_forward(model)

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: LossFunction,
        *,
        num_steps: int = 1,
        num_items: Callable[[Any], float | torch.Tensor] | None = None,
        weight: float = 1.0,
    ) -> torch.Tensor:
        """Compute the gradients of ``loss_fn(model, batch) / num_steps``, or the loss alone without gradients.

        All ranks together; the stages of a pipeline give the same batch.

        Args:
            model: A prepared model.
            batch: Divided into micro-batches by rows.
            loss_fn: Returns the mean loss of a micro-batch.
            num_steps: Batches of the accumulation.
            num_items: Counts the items of a micro-batch; None: its rows.
            weight: Multiplies the loss that gradients are computed of.

        Returns:
            The loss of the batch, the same on every stage.
        """
        pipeline = self._pipelines.get(model)
        if pipeline is None:
            raise ConfigError(f"The {type(model).__name__} was not prepared. Pass what `prepare` returned.")
        number = self._part_of_sequence()
        drawing = _NOTHING if number is None else own_random_numbers(number, self.context.device)
        if not torch.is_grad_enabled():
            with drawing:
                return pipeline.run(model, batch, loss_fn, num_items)
        self._num_steps, self._weight = num_steps, weight
        if self.context.precision.scaler is not None:  # the ranks without a loss need the scale, too
            self.context.precision.scale(torch.ones((), device=self.context.device))
        staged = pipeline.staged
        self._shared_before = take_shared(staged)
        try:
            with drawing:
                loss = pipeline.run(model, batch, loss_fn, num_items)
        except BaseException as error:  # also Ctrl-C in a notebook, after which training goes on
            put_back_shared(staged, self._shared_before)
            error.add_note(
                "Gradients of earlier batches are kept, and may have parts of this one added. Call "
                "`optimizer.zero_grad()` before you go on."
            )
            raise
        add_up_shared(staged, self._shared_before, place=self._place.index, ranks=self._place.ranks)
        self._shared_before = {}
        return loss

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context that does nothing: gradients are complete after each batch."""
        return _NOTHING

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Raise an error: the gradients of a loss on one rank do not reach the stages of other ranks.

        Raises:
            StateError: With what to call in its place.
        """
        raise StateError(f"`backward` cannot train a pipeline. {_ADVICE}")

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return what gradients are computed of, for the loss of a micro-batch."""
        loss = loss / self._num_steps if self._num_steps != 1 else loss
        loss = loss * self._weight if self._weight != 1 else loss
        return self.context.precision.scale(loss)

    @torch.no_grad()
    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the norm of the gradients of all stages together and return what it was. Communicates: all ranks."""
        chosen = [one for one in self._shards_of(parameters) if one.grad is not None]
        counted = {id(tensor) for staged in self._staged() for tensor in self._counted_before(staged)}
        own = [one.grad for one in chosen if one.grad is not None and id(one) not in counted]
        norm = total_norm(own, norm_type, device=self.context.device)
        norms = [torch.empty_like(norm) for _ in self._place.ranks]
        dist.all_gather(norms, norm, group=self._place.group)
        total: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        scale_down((one.grad for one in chosen if one.grad is not None), total, max_norm)
        return total

    def local_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the state, in which each tensor tells the ranks of which stage hold it. No communication."""
        pipeline = self._pipeline_of(model)
        if pipeline is None:
            return model.state_dict(keep_vars=True)
        self._reshard()
        pipeline.staged.refresh()
        state = model.state_dict(keep_vars=True)
        return held_model_state(state, pipeline.staged, self._ranks_at)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a whole state, of which every rank keeps its stage.

        Raises:
            CheckpointError: If parts of the model are on the meta device, and the state has other names or shapes.
        """
        pipeline = self._pipeline_of(model)
        if pipeline is None:
            return super().load_model_state(model, state, strict=strict)
        staged = pipeline.staged
        before = [found.tensor for found in staged.tensors]
        if not staged.users and any(tensor.is_meta for tensor in before):
            kept = [found for found in staged.tensors if found.is_persistent]
            if strict and (said := difference(kept, state)):
                raise CheckpointError(said)
            strict = False
            state = take_early(staged.tensors, state, is_sender=self._is_sender)
            self._follow_replaced(before, staged)
        with staged.without_other_ranks():
            return super().load_model_state(model, state, strict=strict)

    def state_to_fill(self, model: nn.Module) -> dict[str, Any]:
        """Return the state; before the first batch, what is on the meta device is read where it will be sent from."""
        pipeline = self._pipeline_of(model)
        if pipeline is None or pipeline.staged.users:
            return self.local_model_state(model)
        state = model.state_dict(keep_vars=True)
        return state_before_loading(state, is_sender=self._is_sender, device=self.context.device)

    @property
    def _is_sender(self) -> bool:
        """Whether other ranks get the values of a model from this one."""
        return self.context.topology.rank == 0

    def _follow_replaced(self, before: Sequence[torch.Tensor], staged: StagedModel) -> None:
        """Rebind optimizers to the tensors that replaced those ``before``."""
        for old, found in zip(before, staged.tensors, strict=True):
            self._replaced.record(old, found.tensor)
        for prepared in self._optimizers:
            self._replaced.repoint(self.bare_optimizer(prepared))

    def local_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state, in which each tensor tells the ranks of which stage hold it. All ranks together."""
        places = {}
        numbers = {id(one): number for number, one in enumerate(parameters_of(optimizer))}
        for staged in self._staged():
            for found, holders in zip(staged.tensors, staged.holders, strict=True):
                if id(found.tensor) in numbers and holders:
                    places[numbers[id(found.tensor)]] = min(holders)
        return held_optimizer_state(
            optimizer.state_dict(),
            places,
            self._ranks_at,
            rank=self.context.topology.rank,
            device=self.context.device,
        )

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> dict[str, Any]:
        """Return the parameters by name, of which each tells the ranks of which stage hold it."""
        named: dict[str, Any] = super().optimizer_parameters(optimizer, models)
        named = state_before_loading(named, is_sender=True, device=self.context.device)
        for staged in self._staged():
            named = held_model_state(named, staged, self._ranks_at)
        return named

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a whole state, of which every rank keeps that of its stage."""
        self._early[optimizer] = early = EarlyOptimizerState(optimizer, state)
        state = early.rest
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        elsewhere = {
            number
            for number, one in zip(numbers, parameters_of(optimizer), strict=True)
            if any(staged.is_elsewhere(one) for staged in self._staged())
        }
        own = {number: value for number, value in state["state"].items() if number not in elsewhere}
        super().load_optimizer_state(optimizer, {**state, "state": own})

    def open_gradients(self, models: Sequence[nn.Module]) -> dict[str, torch.Tensor]:
        """Return those of the parameters, and those that wait for the first batch."""
        gradients = super().open_gradients(models)
        for number, model in enumerate(models):
            pipeline = self._pipeline_of(model)
            early = {} if pipeline is None else self._early_gradients.get(pipeline, {})
            gradients |= {f"{number}.{name}": one for name, one in early.items()}
        return gradients

    def restore_gradients(self, models: Sequence[nn.Module], gradients: Mapping[str, Any]) -> None:
        """Do so at once, or in the first batch if only that shows what of a model this rank has."""
        rest = dict(gradients)
        for number, model in enumerate(models):
            pipeline = self._pipeline_of(model)
            if pipeline is None or pipeline.staged.users:
                continue
            prefix = f"{number}."
            # Copies, since the file that they are mapped from may be removed.
            self._early_gradients[pipeline] = {
                name.removeprefix(prefix): rest.pop(name).clone()
                for name in gradients
                if name.startswith(prefix)
            }
        super().restore_gradients(models, rest)

    def _pipeline_of(self, model: nn.Module) -> PipelineTraining | None:
        """Return the pipeline of a user's model; None if it has none."""
        for prepared, pipeline in self._pipelines.items():
            if self.unwrap(prepared, keep_torch_compile=False) is model:
                return pipeline
        return None

    def _staged(self) -> Iterator[StagedModel]:
        return (one.staged for one in self._pipelines.values() if one.staged.users)

    def _counted_before(self, staged: StagedModel) -> Iterator[torch.Tensor]:
        """Yield the tensors that an earlier rank of the pipeline computes with too, which counts their gradients."""
        for found, holders in zip(staged.tensors, staged.holders, strict=True):
            if holders and min(holders) < self._place.index:
                yield found.tensor


def _cast_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dtype: torch.dtype
) -> Any:
    return recursively_apply(
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs)
    )


def _refuse_call(
    pipeline: weakref.ref[PipelineTraining], module: nn.Module, arguments: tuple[Any, ...]
) -> None:
    known = pipeline()
    if known is not None and not known.is_running:
        raise StateError(f"The model cannot be called by itself. {_ADVICE}")
