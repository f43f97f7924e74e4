"""Parameters, gradients and optimizer states sharded by torch's `FullyShardedDataParallel`: the old way."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType

from accel_backends.flat_sharding.clipping import clip_gradients
from accel_backends.flat_sharding.flat_model import FlatModel
from accel_backends.flat_sharding.model_state import load_model_state, local_model_state
from accel_backends.flat_sharding.optimizer_state import (
    local_optimizer_state,
    parts_of_optimizer_state,
    places,
    put_whole_state,
)
from accel_backends.flat_sharding.own_values import RankParts, own_model_values, own_optimizer_values
from accel_backends.flat_sharding.repointing import repoint, take_whole_state
from accel_backends.flat_sharding.settings import flat_settings
from accel_backends.flat_sharding.units import flat_units
from accel_backends.flat_sharding.wrapping import flatten_model
from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.plans.sources import resolve_plan
from accel_backends.precisions.forward import wrap_forward
from accel_backends.sharding.full_state import gathered_state
from accel_backends.sharding.shard import is_sharded
from accel_backends.sharding.unit_order import check_unit_order
from accel_backends.sharding.units import whole_parameters
from accel_backends.strategies.capabilities import Capabilities, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.sharded import SHARDS_LACK, ShardedStrategy
from accel_backends.transforms.activation_checkpointing import checkpoint_units
from accel_backends.transforms.compile import compile_units
from accel_backends.unwrap import inner_optimizer, register_container
from accel_state.errors import CheckpointError, ConfigError
from accel_state.mesh_groups import build_mesh
from accel_state.mesh_layout import MeshLayout

_NOTHING = nullcontext()
_WITHIN_A_COPY = {
    ShardingStrategy.HYBRID_SHARD: ShardingStrategy.FULL_SHARD,
    ShardingStrategy._HYBRID_SHARD_ZERO2: ShardingStrategy.SHARD_GRAD_OP,
}
"""What a hybrid strategy does inside of each copy of the model."""
_FORMATS = {
    StateDictType.FULL_STATE_DICT: "full",
    StateDictType.SHARDED_STATE_DICT: "sharded",
    StateDictType.LOCAL_STATE_DICT: "per_rank",
}


class FlatShardedStrategy(ShardedStrategy):
    """Version 1 of FSDP, the old way: the parameters of a unit are flattened into one, which is cut over the ranks.

    Use `fsdp2` unless something needs this: there parameters keep their shapes, names and number formats.
    """

    name: ClassVar[str] = "fsdp"
    version: ClassVar[int] = 1
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        lacks=SHARDS_LACK,
        accumulation=Sync.LATER,
        takes_exchanged_layers=True,
        mesh_axes=frozenset({"dp_replicate", "dp_shard"}),
    )

    @property
    def checkpoint_format(self) -> str:
        """The format in which models and optimizers are saved; ``state_dict_type`` of the plugin chooses it."""
        return _FORMATS[cast(StateDictType, self._plugin.state_dict_type)]

    @property
    def has_gradients_in_parameters(self) -> bool:
        """Not where ranks share parameters: gradients that are not reduced yet are whole."""
        return self.context.topology.world_size == 1

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run; a single process gets a process group.

        Raises:
            ConfigError: If the layout of the ranks contradicts the sharding strategy, or the model is to be compiled
                with ``use_orig_params=False``, which torch's compiler cannot do.
        """
        super().setup(context)
        plugin = self._plugin
        if context.dynamo is not None and not plugin.use_orig_params:
            raise ConfigError(
                "`use_orig_params=False` cannot be compiled. Set `use_orig_params=True` in "
                "`FullyShardedDataParallelPlugin`, or leave out the dynamo backend."
            )
        register_container(FullyShardedDataParallel)
        strategy = sharding_in(context.layout, cast(ShardingStrategy, plugin.sharding_strategy))
        self._mesh = _mesh_of(context.layout, strategy, context.device.type)
        self._settings = flat_settings(
            plugin,
            strategy=strategy,
            mesh=self._mesh,
            device=context.device,
            dtype=context.precision.dtype,
        )
        plugin.show_policy(self._settings.mixed_precision)
        self._models: weakref.WeakKeyDictionary[nn.Module, FlatModel] = weakref.WeakKeyDictionary()

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform and shard one model, and return the wrapped one; one that is wrapped already is left as it is."""
        if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
            self.context.precision.check_converted(model)
            return model
        if is_sharded(model):
            raise ConfigError(
                f"The {type(model).__name__} to prepare has `DTensor`s, which `fsdp_version=1` cannot flatten. Use "
                "`fsdp_version=2`, which leaves a model that is sharded as it is."
            )
        self._refuse_shared(model)
        self.context.precision.convert_layers(model)
        plan = resolve_plan(model, policy=self._plugin.units_policy())
        units = [model.get_submodule(name) for name in plan.units]
        if self._plugin.activation_checkpointing:
            checkpoint_units(
                units,
                offloads_inputs=bool(self._plugin.activation_checkpointing_offload),
                is_selective=self._plugin.selective_checkpointing,
            )
        if self.context.dynamo is not None:
            compile_units(units, self.context.dynamo)
        dtype = self._settings.mixed_precision.param_dtype
        if dtype is not None:
            # torch's wrapper casts parameters and inputs, but not what modules that it ignores compute with.
            device_type = self.context.device.type
            wrap_forward(model, device_type=device_type, dtype=dtype, enabled=self._has_autocast)
        flat = flatten_model(
            model,
            flat_units(model, plan.units),
            self._settings,
            whole=whole_parameters(model, self._plugin.ignored_modules),
            replaced=self._replaced,
        )
        self._models[flat.root] = flat
        check_unit_order(flat.root, flat.units(), kind=type(model).__name__)
        return flat.root

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Rebind ``optimizer`` to the flat parameters, with its state, and wrap it.

        Raises:
            ConfigError: If ``use_orig_params=False`` and it steps a part of a flat parameter.
        """
        inner = inner_optimizer(optimizer)
        models = self._models_of(inner)
        state = take_whole_state(inner, models)
        repoint(inner, self._replaced, models)
        put_whole_state(inner, models, state)
        return super().prepare_optimizer(optimizer, device_placement=device_placement)

    def replaced_parameters(self) -> Iterable[torch.Tensor]:
        """Return the parameters from before flattening that somebody still holds."""
        return self._replaced

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context in which gradients are reduced over all ranks, or not at all."""
        flat = self._models.get(model) or self._flat(self.unwrap(model, keep_torch_compile=False))
        return _NOTHING if flat is None or sync is not Sync.LATER else _unsynchronised(flat)

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the norm of all gradients together and return what it was. Communicates: all ranks."""
        chosen = self._known(parameters)
        models = [model for model in self._models.values() if any(id(one) in model.names for one in chosen)]
        return clip_gradients(
            chosen,
            max_norm,
            norm_type,
            sharded=frozenset().union(*(model.sharded for model in models)),
            is_accumulating=any(model.is_accumulating for model in models),
            group=self._mesh.get_group(self._mesh.ndim - 1),
            device=self.context.device,
        )

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each gradient value to plus or minus ``clip_value``."""
        torch.nn.utils.clip_grad_value_(self._known(parameters), clip_value)

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state on the CPU of rank 0, an empty dict on the others. All ranks must call it."""
        flat = self._flat(self.unwrap(model, keep_torch_compile=False))
        if flat is None:
            return super().model_state(model)
        state = local_model_state(flat, rank0_only=True)
        return gathered_state(state, is_receiver=self.context.topology.rank == 0)

    def local_model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return a `DTensor` for each sharded parameter, with this rank's rows on the CPU. Communicates: all ranks."""
        flat = self._flat(model)
        if flat is None:
            return super().local_model_state(model)
        return local_model_state(flat)

    def parts_of_model(self, model: nn.Module) -> RankParts:
        """Return this rank's shards of the flat parameters, and its unsharded tensors. No communication."""
        flat = self._flat(model)
        return RankParts({}, slices=None) if flat is None else own_model_values(flat)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a full state, or one from `local_model_state`. All ranks must call it."""
        flat = self._flat(model)
        if flat is None:
            return super().load_model_state(model, state, strict=strict)
        return load_model_state(flat, state, strict=strict)

    def local_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return `DTensor`s, as `local_model_state` does. Communicates: all ranks."""
        return local_optimizer_state(optimizer, self._models_of(optimizer))

    def parts_of_optimizer(self, optimizer: torch.optim.Optimizer) -> RankParts:
        """Return the state of the parameters that this rank steps: shards of flat parameters. No communication."""
        return own_optimizer_values(optimizer, self._models_of(optimizer))

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> dict[str, torch.Tensor]:
        """Return tensors without values, by the names of the parameters, of the shapes that they have in whole."""
        flats = [flat for flat in map(self._flat, models) if flat is not None]
        found = [place for group in places(optimizer, flats) for place in group]
        stepped = {id(model) for model, _ in found}
        named: dict[str, torch.Tensor] = {}
        for model, name in found:
            if model is None:
                raise CheckpointError(
                    f"A parameter of shape {tuple(name.shape)} of the {type(optimizer).__name__} is part of no "
                    "prepared model, so its state has no name in a checkpoint. Prepare its model too."
                )
            prefix = "" if len(stepped) == 1 else f"{flats.index(model)}."
            named[prefix + name] = torch.empty(()).expand(model.shapes[name])
        return named

    def optimizer_shapes(self, optimizer: torch.optim.Optimizer) -> list[list[torch.Size]]:
        """Return the shapes of the whole parameters that ``optimizer`` steps, by group, as a plain one numbers them."""
        groups = places(optimizer, self._models_of(optimizer))
        return [
            [one.shape if model is None else model.shapes[one] for model, one in group] for group in groups
        ]

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, of which every rank takes its parts. All ranks must call it."""
        own = parts_of_optimizer_state(optimizer, self._models_of(optimizer), state)
        super().load_optimizer_state(optimizer, own)

    def _flat(self, model: nn.Module) -> FlatModel | None:
        """Return the flattened model of a user's model; None if it was not sharded here."""
        for flat in self._models.values():
            if self.unwrap(flat.root, keep_torch_compile=False) is model:
                return flat
        return None

    def _refuse_shared(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if any(parameter in flat.originals for flat in self._models.values()):
                raise ConfigError(
                    f"`{name}` of the {type(model).__name__} to prepare is part of a model that was prepared before, "
                    "and which has sharded it. Put both models into one module, and prepare that."
                )

    def _models_of(self, optimizer: torch.optim.Optimizer) -> list[FlatModel]:
        """Return the models whose parameters an optimizer steps, or stepped before they were flattened."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return [
            model
            for model in self._models.values()
            if any(id(parameter) in model.names or parameter in model.originals for parameter in parameters)
        ]

    def _known(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        """Return ``parameters`` as a list.

        Raises:
            ConfigError: If one was flattened into another, so that it never has a gradient.
        """
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        for model in self._models.values():
            for parameter in chosen:
                if parameter in model.originals and id(parameter) not in model.names:
                    raise ConfigError(
                        f"The parameter of shape {tuple(model.shapes[model.originals[parameter]])} is the "
                        f"`{model.originals[parameter]}` from before the model was prepared, and has no gradient any "
                        "more. Pass parameters of the model that `prepare` returned, or set `use_orig_params=True`."
                    )
        return chosen


def sharding_in(layout: MeshLayout, asked: ShardingStrategy) -> ShardingStrategy:
    """Return how parameters are cut where ranks are arranged as ``layout`` says.

    Raises:
        ConfigError: If there are several copies of the model and a strategy that knows only one.
    """
    if asked is ShardingStrategy.NO_SHARD or layout.num_param_shards == 1:
        return ShardingStrategy.NO_SHARD
    if asked in _WITHIN_A_COPY:
        return asked if layout.dp_replicate > 1 else _WITHIN_A_COPY[asked]
    if layout.dp_replicate > 1:
        raise ConfigError(
            f"`sharding_strategy={asked.name}` has one copy of the model, but `parallelism_config` asks for "
            f"{layout.dp_replicate} (`dp_replicate_size`). Set `sharding_strategy` to `HYBRID_SHARD` or "
            "`HYBRID_SHARD_ZERO2`, or `dp_replicate_size` to 1."
        )
    return asked


def _mesh_of(layout: MeshLayout, strategy: ShardingStrategy, device_type: str) -> DeviceMesh:
    """Return the mesh of the shards, with an outer axis where there are several copies that are cut."""
    if strategy in _WITHIN_A_COPY:
        sizes = {"dp_replicate": layout.dp_replicate, "dp_shard": layout.num_param_shards}
    else:
        sizes = {"dp_shard": layout.dp_replicate * layout.num_param_shards}
    return build_mesh(device_type, sizes)


@contextmanager
def _unsynchronised(model: FlatModel) -> Iterator[None]:
    """Defer gradient reduction until the block is left; unsharded gradients accumulate locally."""
    model.is_accumulating = True
    try:
        with model.root.no_sync(), model.whole.unsynchronized():
            yield
    finally:
        model.is_accumulating = False
