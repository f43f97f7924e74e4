"""Pipeline parallelism: each rank trains a stage of the model, and micro-batches pass through the stages."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.compile import compile_forwards
from accel_backends.fsdp.apply import transform_units
from accel_backends.fsdp.clipping import scale_down, total_norm
from accel_backends.fsdp.replicated import ReplicatedParameters
from accel_backends.fsdp.state import difference
from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.own_random_numbers import own_random_numbers
from accel_backends.pipeline.loading import StageSharding, load_stages
from accel_backends.pipeline.messages import num_lanes
from accel_backends.pipeline.pipeline import ItemCount, LossFunction, OutputFunction, Pipeline
from accel_backends.pipeline.schedule_run import PipelinePlace
from accel_backends.pipeline.shared_gradients import detach_shared, reduce_shared, restore_shared
from accel_backends.pipeline.stage_root import StageRoot
from accel_backends.pipeline.stages import StagedModel, refuse_collected
from accel_backends.pipeline.state import held_model_state, held_optimizer_state
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plans.sources import resolve_plan
from accel_backends.plans.stages import Stages, stages_of
from accel_backends.strategies.capabilities import Capabilities, OpenGradients, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.fsdp2 import SHARDS_LACK, FullyShardedStrategy
from accel_backends.tensor_parallel.parallel import share_random_state
from accel_backends.unwrap import inner_optimizer
from accel_ops.named_tensors import named_tensors
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
    """Each rank, or each group of ranks over which it is sharded, trains a stage of the model.

    Parameters of other stages keep their names and shapes, and lose their memory when the model is prepared; those of
    the rank's stage are sharded as `fsdp2` does it.
    """

    name: ClassVar[str] = "pipeline"
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        lacks=SHARDS_LACK,
        mesh_axes=frozenset({"pp", "dp_replicate", "dp_shard", "cp", "sp", "tp", "ep"}),
    )

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
        lanes = range(num_lanes(len(ranks), self._handler.stages_per_rank or 1))
        self._place = PipelinePlace(
            ranks=ranks,
            index=layout.coordinate(rank)["pp"],
            group=dist.new_group(list(ranks), use_local_synchronization=True),
            forward_groups=[dist.new_group() for _ in lanes] if len(lanes) > 1 else [None],
            backward_groups=[dist.new_group() for _ in lanes],
            num_pipelines=layout.world_size // len(ranks),
        )
        self._pipelines: weakref.WeakKeyDictionary[nn.Module, Pipeline] = weakref.WeakKeyDictionary()
        self._unfilled: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()
        """Names of tensors that have memory but no values yet, the same on every rank."""
        self.open_gradients = OpenGradients()  # complete after each batch, also over replicas

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform one model, and load and shard the stages of this rank. Every rank must call it."""
        if model in self._pipelines:
            return model
        stages = self._stages(model)
        tensors = named_tensors(model)
        before = {found.names[0]: found.tensor for found in tensors if found.is_parameter}
        kind = type(model).__name__
        self._check_unshared(before, kind=kind)
        is_sharded = self._place.num_pipelines > 1
        if not is_sharded:  # `fully_shard` casts by itself
            model = self.context.precision.convert(model)
        sharding = self._sharding(model) if is_sharded else None
        staged = StagedModel(
            model,
            stages,
            device=self.context.device,
            place=self._place.index,
            num_ranks=self.context.layout.pp,
        )
        files = self._read_config().files
        self._unfilled[model] = load_stages(
            staged, device=self.context.device, files=files, sharding=sharding
        )
        if sharding is not None:
            self._finish_sharding(model, staged, sharding)
        if self.context.dynamo is not None:
            compile_forwards(self._units_here(model, staged), **self.context.dynamo.to_kwargs())
        self._record_replaced(model, before, kind=kind)
        assert self._handler.schedule is not None  # since it was built
        pipeline = self._pipelines[model] = Pipeline(
            staged,
            self._handler.schedule,
            place=self._place,
            device=self.context.device,
            num_micro_batches=self._handler.num_micro_batches,
            root=None if sharding is None else sharding.root,
        )
        model.register_forward_pre_hook(partial(_refuse_call, weakref.ref(pipeline)))
        model.register_forward_pre_hook(refuse_collected, with_kwargs=True)
        return model

    def _stages(self, model: nn.Module) -> Stages:
        points = self._handler.split_points
        num_stages = self.context.layout.pp * (self._handler.stages_per_rank or 1)
        if points != "auto" and len(points) != num_stages - 1:
            raise ConfigError(
                f"`split_points` of `pp_handler` names {len(points)} modules, but {num_stages} stages need "
                f"{num_stages - 1}: one for each but the first."
            )
        plan = self._parallel_plan(model)
        return stages_of(model, plan, num_stages, split_points=None if points == "auto" else list(points))

    def _sharding(self, model: nn.Module) -> StageSharding:
        # Compiled when it is known which units are here.
        config = self._read_config()
        plan = transform_units(model, named_tensors(model), config, self._axes, dynamo=None)
        if plan.layers is not None and plan.layers.is_in_sequence:
            raise ConfigError(
                "The plan cuts sequences between layers, by styles whose names end in `_sequence`, which stages of a "
                "pipeline cannot send. Use the styles of the same names without `_sequence`."
            )
        return StageSharding(StageRoot(model, device=self.context.device), plan, config, self._axes)

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Rebind ``optimizer`` to the parameters of this rank's stages, and wrap it; other parameters keep no state."""
        inner = inner_optimizer(optimizer)
        self.replaced.repoint(inner)
        for parameter in [one for one in inner.state if self._is_elsewhere(one)]:
            del inner.state[parameter]
        return super().prepare_optimizer(optimizer, device_placement=device_placement)

    def _is_elsewhere(self, parameter: torch.Tensor) -> bool:
        return any(staged.is_elsewhere(parameter) for staged in self._staged())

    def _units_here(self, model: nn.Module, staged: StagedModel) -> list[nn.Module]:
        """Return the units of which this rank has all parameters; those of others never run."""
        units = [model.get_submodule(name) for name in self._parallel_plan(model).units]
        return [unit for unit in units if not any(map(staged.is_elsewhere, unit.parameters()))]

    def _parallel_plan(self, model: nn.Module) -> ParallelPlan:
        config = self._read_config()
        return resolve_plan(model, given=config.parallel_plan, policy=config.units)

    def _finish_sharding(self, model: nn.Module, staged: StagedModel, sharding: StageSharding) -> None:
        self._models.add(sharding.root)
        names = set(sharding.plan.whole)
        here = [one for one in staged.tensors if staged.is_held(one)]
        whole = (model.get_parameter(one.names[0]) for one in here if one.names[0] in names)
        sharding.root.replicated = ReplicatedParameters(None, whole, self._mesh)
        if names:
            self._step_replicated()
        if self._layer_mesh is not None:
            share_random_state(self._layer_mesh, self.context.device)
        policy = sharding.config.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            # What `fully_shard` does for the inputs of its root, which is another one here.
            model.register_forward_pre_hook(partial(_cast_inputs, dtype=policy.param_dtype), with_kwargs=True)
        self._cast_forward(model, sharding.config)

    def forward_backward(
        self,
        model: nn.Module,
        batch: Any,
        loss_fn: LossFunction,
        *,
        num_steps: int = 1,
        num_items: ItemCount | None = None,
        weight: float = 1.0,
    ) -> torch.Tensor:
        """Compute gradients, or the loss alone without gradients; return the loss, the same on every stage.

        All ranks together; the stages of a pipeline give the same batch. For the arguments see `ForwardBackward`.
        """
        pipeline = self._loaded(model)
        if not torch.is_grad_enabled():
            with self._drawing():
                return pipeline.run(model, batch, loss_fn, num_items)

        def scaled(loss: torch.Tensor) -> torch.Tensor:
            loss = loss / num_steps if num_steps != 1 else loss
            return self.context.precision.scale(loss * weight if weight != 1 else loss)

        if self.context.precision.scaler is not None:  # the ranks without a loss need the scale, too
            self.context.precision.scale(torch.ones((), device=self.context.device))
        staged = pipeline.staged
        earlier = detach_shared(staged)
        try:
            with self._drawing():
                loss = pipeline.run(model, batch, loss_fn, num_items, scaled)
        except BaseException as error:  # also Ctrl-C in a notebook, after which training goes on
            restore_shared(staged, earlier)
            error.add_note(
                "Gradients of earlier batches are kept, and may have parts of this one added. Call "
                "`optimizer.zero_grad()` before you go on."
            )
            raise
        reduce_shared(staged, earlier, pipeline.used, place=self._place.index, ranks=self._place.ranks)
        return loss

    def evaluate(
        self, model: nn.Module, batch: Any, loss_fn: OutputFunction, *, num_items: ItemCount | None = None
    ) -> tuple[torch.Tensor, Any]:
        """Return the loss and the outputs of a batch, on every stage. All ranks together; see `forward_backward`."""
        pipeline = self._loaded(model)
        with self._drawing():
            return pipeline.evaluate(model, batch, loss_fn, num_items)

    def _loaded(self, model: nn.Module) -> Pipeline:
        """Return the pipeline of a prepared model, all of whose tensors have values."""
        pipeline = self._pipelines.get(model)
        if pipeline is None:
            raise ConfigError(f"The {type(model).__name__} was not prepared. Pass what `prepare` returned.")
        if unfilled := self._unfilled[model]:
            raise ConfigError(
                f"`{min(unfilled)}` has no values: it was on the meta device on rank 0. Call `load_state` before the "
                "first batch, or read it from files: `FullyShardedDataParallelPlugin(load_weights_from=folder)`."
            )
        return pipeline

    def _drawing(self) -> AbstractContextManager[None]:
        """Return a block in which ranks that share sequences draw random numbers of their own."""
        number = self._axes.sequence_index
        return _NOTHING if number is None else own_random_numbers(number, self.context.device)

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context that does nothing: gradients are complete after each batch."""
        return _NOTHING

    def backward(self, loss: torch.Tensor, *, num_steps: int = 1, **kwargs: Any) -> None:
        """Raise an error: the gradients of a loss on one rank do not reach the stages of other ranks.

        Raises:
            StateError: With what to call in its place.
        """
        raise StateError(f"`backward` cannot train a pipeline. {_ADVICE}")

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

    def model_tensors(
        self, model: nn.Module, *, to_fill: bool = False, as_computed: bool = False
    ) -> dict[str, Any]:
        """Return the state, in which each tensor names the ranks of its stage. No communication."""
        state = model.state_dict(keep_vars=True)
        if (pipeline := self._pipeline_of(model)) is None:
            return state
        self._reshard()
        pipeline.staged.refresh()
        return held_model_state(model.state_dict(keep_vars=True), pipeline.staged, self._ranks_at)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a full state, of which every rank keeps its stages.

        Raises:
            CheckpointError: If the state has other names or shapes, and ``strict`` is set.
        """
        if (pipeline := self._pipeline_of(model)) is None:
            return super().load_model_state(model, state, strict=strict)
        staged = pipeline.staged
        kept = [found for found in staged.tensors if found.is_persistent]
        if strict and (said := difference(kept, state)):
            raise CheckpointError(said)
        elsewhere = {name for found in kept if not staged.is_held(found) for name in found.names}
        here = {name: value for name, value in state.items() if name not in elsewhere}
        outcome = super().load_model_state(model, here, strict=False)
        self._unfilled[model] = self._unfilled[model] - {*state} - elsewhere
        missing = [name for name in outcome.missing_keys if name in state or name not in elsewhere]
        return type(outcome)(missing, outcome.unexpected_keys)

    def optimizer_tensors(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the state, in which each tensor names the ranks of its stage. All ranks together."""
        places = {}
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        numbers = {id(one): number for number, one in enumerate(parameters)}
        for staged in self._staged():
            for found, holders in zip(staged.tensors, staged.holders, strict=True):
                if id(found.tensor) in numbers:
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
    ) -> list[dict[str | int, Any]]:
        """Return the parameters, of which each names the ranks of its stage."""
        groups = super().optimizer_parameters(optimizer, models)
        for staged in self._staged():
            groups = [held_model_state(group, staged, self._ranks_at) for group in groups]
        return groups

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, of which every rank keeps that of its stages."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        numbers = [number for group in state["param_groups"] for number in group["params"]]
        here = {n for n, one in zip(numbers, parameters, strict=True) if not self._is_elsewhere(one)}
        kept = {number: value for number, value in state["state"].items() if number in here}
        super().load_optimizer_state(optimizer, {**state, "state": kept})

    def _pipeline_of(self, model: nn.Module) -> Pipeline | None:
        """Return the pipeline of a user's model; None if it has none."""
        for prepared, pipeline in self._pipelines.items():
            if self.unwrap(prepared, keep_torch_compile=False) is model:
                return pipeline
        return None

    def _staged(self) -> Iterator[StagedModel]:
        return (one.staged for one in self._pipelines.values())

    def _counted_before(self, staged: StagedModel) -> Iterator[torch.Tensor]:
        """Yield the tensors that an earlier rank of the pipeline computes with too, which counts their gradients."""
        for found, holders in zip(staged.tensors, staged.holders, strict=True):
            if min(holders) < self._place.index:
                yield found.tensor


def _cast_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, dtype: torch.dtype
) -> Any:
    return recursively_apply(
        lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, (args, kwargs)
    )


def _refuse_call(pipeline: weakref.ref[Pipeline], module: nn.Module, arguments: tuple[Any, ...]) -> None:
    known = pipeline()
    if known is not None and not known.is_running:
        raise StateError(f"The model cannot be called by itself. {_ADVICE}")
