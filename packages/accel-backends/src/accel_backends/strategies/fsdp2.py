"""Parameters, gradients and optimizer states sharded over the ranks, by torch's `fully_shard`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.tensor import DTensor

from accel_backends.autocast_forward import wrap_forward
from accel_backends.fsdp.apply import RunAxes, apply_sharding, is_sharded
from accel_backends.fsdp.clipping import clip_gradients, clip_values
from accel_backends.fsdp.config import FSDPConfig
from accel_backends.fsdp.parameters import ReplacedParameters
from accel_backends.fsdp.replicated import (
    ReplicatedParameters,
    separate_groups,
    synchronized_in_shards,
    unsynchronized,
)
from accel_backends.fsdp.state import (
    load_model_state,
    sharded_optimizer_state,
)
from accel_backends.handlers.precision import AutocastKwargs
from accel_backends.optimizer import AcceleratedOptimizer, in_memory
from accel_backends.plugins.fsdp import settings_of_run
from accel_backends.plugins.ram_efficient_loading import enable_fsdp_ram_efficient_loading
from accel_backends.sequence_parallel.axis import SequenceAxis, sequence_axis
from accel_backends.strategies.capabilities import (
    NOT_APART,
    ONLY_DDP_HAS_HOOKS,
    Capabilities,
    Feature,
    Sync,
)
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.strategy import Strategy
from accel_backends.unwrap import inner_optimizer
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError
from accel_state.mesh_groups import build_mesh
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

_NOTHING = nullcontext()
SHARDS_LACK = {
    Feature.JOIN: "a rank that has no batch left would keep its shards from the others. Let all ranks get as many "
    "batches with `even_batches=True`.",
    Feature.COMMUNICATION_HOOK: ONLY_DDP_HAS_HOOKS,
    Feature.LOCAL_SGD: NOT_APART,
}
"""What no strategy does that cuts parameters over the ranks."""


class FullyShardedStrategy(Strategy):
    """Cuts each parameter over the ranks of a copy of the model, and gathers one unit of the model at a time.

    One rank alone is sharded in the same way, so that a script means the same there.
    """

    name: ClassVar[str] = "fsdp2"
    sequences: SequenceAxis | None
    replaced: ReplacedParameters
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        lacks=SHARDS_LACK,
        accumulation=Sync.IN_SHARDS,
        takes_exchanged_layers=True,
        mesh_axes=frozenset({"dp_replicate", "dp_shard", "cp", "sp", "tp", "ep"}),
    )

    @property
    def checkpoint_format(self) -> str:
        """The format in which models and optimizers are saved."""
        return "full" if self._state_dict_type() is StateDictType.FULL_STATE_DICT else "sharded"

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run; a single process gets a process group.

        If rank 0 alone needs weights, variables say so to libraries that load models.

        Raises:
            ConfigError: If the precision exchanges layers that ranks are to share, or ``reshard_after_forward`` does
                not fit the mesh.
        """
        super().setup(context)
        runtime, layout, device = context.runtime, context.runtime.layout, context.runtime.device
        _check_own_layers(context, layout)
        runtime.ensure_group()
        autocast = context.handlers.get(AutocastKwargs)
        self._read_config, self._state_dict_type = settings_of_run(
            context.plugin,
            dtype=context.precision.dtype,
            has_autocast=autocast is None or autocast.enabled,
        )
        config = self._read_config()
        if config.cpu_ram_efficient_loading:
            enable_fsdp_ram_efficient_loading()
        if context.precision.scaler is not None:
            context.precision.scaler.share_overflows()
        self._device = device
        self._mesh, self._layer_mesh = _meshes_of(layout, device.type)
        if not isinstance(config.reshard_after_forward, bool):
            config.check_resharding(layout.num_param_shards)
        self._reduces_once = config.reduces_once
        if self._mesh.ndim > 1 or self._reduces_once:
            self.open_gradients = None  # torch keeps gradients that are not fully reduced to itself
        expert_mesh, dispatch_mesh = _expert_meshes_of(layout, device.type)
        rank, has_parts = runtime.topology.rank, layout.size("cp", "sp") > 1
        self.sequences = sequence_axis(layout, context.parallelism, rank=rank) if has_parts else None
        self._axes = RunAxes(
            device,
            self._mesh,
            self._layer_mesh,
            self.sequences,
            expert_mesh,
            dispatch_mesh,
            # Sharding averages over the ranks that have the same experts, and these see the tokens of all ranks.
            expert_gradient_scale=layout.size("dp_replicate", "edp_shard") / layout.num_loss_ranks,
            sequence_index=layout.index(rank, "cp", "sp") if has_parts else None,
            layer_sequence_index=layout.index(rank, "cp", "sp", "tp") if has_parts or layout.tp > 1 else None,
        )
        self.replaced = ReplacedParameters(self._reshard)
        self._has_replicated = False
        self._gathering = context.precision.gathering
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._whole: weakref.WeakKeyDictionary[nn.Module, ReplicatedParameters] = weakref.WeakKeyDictionary()

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform and shard one model, in place; one that is sharded already is left as it is."""
        config = self._read_config()
        if is_sharded(model) and not self._has_layers_only(model):
            self.context.precision.check_converted(model)
            if not all(isinstance(parameter, DTensor) for parameter in model.parameters()):
                self._step_replicated()
            self._cast_forward(model, config)
            self._models.add(model)
            return model
        kind, tensors = type(model).__name__, named_tensors(model)
        before = {found.names[0]: found.tensor for found in tensors if found.is_parameter}
        self._check_unshared(before, kind=kind)
        if self.context.precision.has_own_layers:
            self.context.precision.convert_layers(model)
            tensors = named_tensors(model)
        plan = apply_sharding(
            model,
            tensors,
            config,
            self._axes,
            dynamo=self.context.dynamo,
            gathering=self._gathering,
        )
        if plan.whole:
            whole = map(model.get_parameter, plan.whole)
            self._whole[model] = ReplicatedParameters(model, whole, self._mesh)
            self._step_replicated()
        self._record_replaced(model, before, kind=kind)
        self._cast_forward(model, config)
        self._models.add(model)
        return model

    def _has_layers_only(self, model: nn.Module) -> bool:
        """Whether a library has sharded the layers of ``model``, and this run shards more than that."""
        is_shared = self._mesh.size() > 1 or self.sequences is not None
        return is_shared and not isinstance(model, FSDPModule) and self._layer_mesh is not None

    def _step_replicated(self) -> None:
        """Step parameters that are replicated apart from the sharded ones, in all optimizers of the run."""
        self._has_replicated = True
        for optimizer in self._optimizers:
            optimizer.step_within(separate_groups)

    def _check_unshared(self, parameters: Mapping[str, torch.Tensor], *, kind: str) -> None:
        for name, parameter in parameters.items():
            if parameter in self.replaced:
                raise ConfigError(
                    f"`{name}` of the {kind} to prepare is part of a model that was prepared "
                    "before, and which has sharded it. Put both models into one module, and prepare that."
                )

    def _record_replaced(self, model: nn.Module, before: Mapping[str, torch.Tensor], *, kind: str) -> None:
        pairs = {name: (old, model.get_parameter(name)) for name, old in before.items()}
        self.replaced.record(pairs.values())
        lost = [f"`{name}`" for name, (old, new) in pairs.items() if old is not new and _has_hooks(old)]
        if lost:
            warn_user(
                f"Hooks on {', '.join(lost)} of the {kind} are no longer called, since FSDP has "
                "replaced these parameters. Register them on the parameters of the prepared model."
            )

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Rebind ``optimizer`` to the shards of its parameters, and wrap it."""
        inner = inner_optimizer(optimizer)
        self.replaced.repoint(inner)
        if self._gathering is not None:
            self._gathering.watch(inner)
        prepared = super().prepare_optimizer(optimizer, device_placement=device_placement)
        if self._has_replicated:
            prepared.step_within(separate_groups)
        return prepared

    def prepare_loader(
        self, loader: Any, prepare: Callable[[Any], Any], *, models: Sequence[nn.Module] = ()
    ) -> Any:
        """Return a prepared loader, of this rank's part of each sequence if loaders of the run split them."""
        sequences, prepared = self.sequences, prepare(loader)
        return sequences.wrap_loader(prepared) if sequences and sequences.cuts_batches else prepared

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> list[dict[str | int, Any]]:
        """Return the parameters that ``optimizer`` steps as they are stored."""
        groups = super().optimizer_parameters(optimizer, models)
        gathering = self._gathering
        if gathering is None:
            return groups
        return [{name: gathering.stored(one) for name, one in group.items()} for group in groups]

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context in which gradients are reduced over all ranks, over the shards only, or not at all."""
        if not isinstance(model, FSDPModule) or sync is Sync.NOW:
            return _NOTHING
        if sync is Sync.LATER or self._reduces_once:
            return unsynchronized(model, self._whole.get(model))
        return synchronized_in_shards(model) if self._mesh.ndim > 1 else _NOTHING

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the norm of all gradients together and return what it was. Communicates: all ranks."""
        chosen = self._shards_of(parameters)
        return clip_gradients(chosen, max_norm, norm_type, device=self._device)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each gradient value to plus or minus ``clip_value``."""
        clip_values(self._shards_of(parameters), clip_value)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a whole state, of which every rank takes its parts."""
        return load_model_state(model, state, strict=strict)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, of which every rank takes its parts."""
        optimizer.load_state_dict(in_memory(optimizer, sharded_optimizer_state(optimizer, state)))

    def _cast_forward(self, model: nn.Module, config: FSDPConfig) -> None:
        """Make the forward pass cast the inputs of operations, unless a policy of the user does."""
        policy = config.policy
        if config.casts_forward:
            wrap_forward(
                model,
                device_type=self._device.type,
                dtype=policy.param_dtype,
                enabled=not policy.cast_forward_inputs,
                keeps_beside_loss=True,
            )

    def _shards_of(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        # A gathered parameter never has a gradient; a whole one has.
        if all(isinstance(parameter, DTensor) or parameter.grad is not None for parameter in chosen):
            return chosen
        self._reshard()
        return [self.replaced.newest(parameter) for parameter in chosen]

    def _reshard(self) -> None:
        """Reshard every unit, and record the sharded parameter behind each unsharded one.

        A forward pass that no backward pass follows, as in an evaluation, leaves those of the tail and the root
        gathered. Whoever asks the model for its parameters then gets tensors that never have a gradient.
        """
        for model in self._models:
            gathered = dict(model.named_parameters())
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
            self.replaced.record((gathered[name], parameter) for name, parameter in model.named_parameters())


def _check_own_layers(context: StrategyContext, layout: MeshLayout) -> None:
    shared = [axis for axis in ("tp", "ep") if context.precision.has_own_layers and layout.size(axis) > 1]
    if shared:
        raise ConfigError(
            f"`{shared[0]}_size` {layout.size(shared[0])} cuts layers, which `mixed_precision="
            f"{context.precision.name}` exchanges for others that are not cut. Set it to 1, or use "
            "`mixed_precision=bf16`."
        )


def _meshes_of(layout: MeshLayout, device_type: str) -> tuple[DeviceMesh, DeviceMesh | None]:
    """Return the mesh of the shards, and that of the ranks which share layers, None where none do.

    The first has an outer axis where there are several copies of the model. Each stage of a pipeline has its own.
    """
    sizes = {
        "pp": layout.pp,
        "dp_replicate": layout.dp_replicate,
        "dp_shard": layout.num_param_shards,
        "tp": layout.tp,
    }
    sizes = {axis: size for axis, size in sizes.items() if size > 1 or axis == "dp_shard"}
    mesh = build_mesh(device_type, sizes)
    shards = tuple(axis for axis in sizes if axis not in ("pp", "tp"))
    return mesh if shards == tuple(sizes) else mesh[shards], mesh["tp"] if layout.tp > 1 else None


def _expert_meshes_of(layout: MeshLayout, device_type: str) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """Return the mesh of the ranks that hold the same experts, and that of those which share them all.

    None and None where experts are not spread over ranks.
    """
    if layout.ep == 1:
        return None, None
    mesh = layout.expert_mesh(device_type)
    copies = ("dp_replicate",) if layout.dp_replicate > 1 else ()
    return mesh[(*copies, "edp_shard")], mesh["ep"]


def _has_hooks(tensor: torch.Tensor) -> bool:
    return bool(tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None))
