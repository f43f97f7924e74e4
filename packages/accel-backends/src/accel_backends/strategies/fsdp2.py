"""Parameters, gradients and optimizer states sharded over the ranks, by torch's `fully_shard`."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, ClassVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, StateDictType
from torch.distributed.tensor import DTensor

from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.plans.plan import ParallelPlan
from accel_backends.plugins.dynamo import TorchDynamoPlugin
from accel_backends.plugins.ram_efficient_loading import enable_fsdp_ram_efficient_loading
from accel_backends.precisions.forward import wrap_forward
from accel_backends.sequences.axis import sequence_axis
from accel_backends.sharding.clipping import clip_gradients, clip_values
from accel_backends.sharding.full_state import (
    gathered_state,
    load_model_state,
    sharded_optimizer_state,
)
from accel_backends.sharding.prefetching import set_prefetching
from accel_backends.sharding.replicated import (
    ReplicatedParameters,
    separate_groups,
    synchronized_in_shards,
    unsynchronized,
)
from accel_backends.sharding.settings import shard_settings
from accel_backends.sharding.shard import gather_once, is_sharded, shard_model
from accel_backends.sharding.shard_plan import ShardPlan, plan_sharding
from accel_backends.sharding.unit_order import check_unit_order
from accel_backends.strategies.capabilities import Capabilities, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.sharded import SHARDS_LACK, ShardedStrategy
from accel_backends.transforms.expert_parallel import ExpertParallel
from accel_backends.transforms.own_random_numbers import draw_own_numbers
from accel_backends.transforms.tensor_parallel import share_random_state
from accel_backends.unwrap import inner_optimizer
from accel_ops.named_tensors import NamedTensor, named_tensors
from accel_state.errors import ConfigError
from accel_state.mesh_groups import build_mesh
from accel_state.mesh_layout import MeshLayout
from accel_state.user_warnings import warn_user

_NOTHING = nullcontext()


class FullyShardedStrategy(ShardedStrategy):
    """Cuts each parameter over the ranks of a copy of the model, and gathers one unit of the model at a time.

    One rank alone is sharded in the same way, so that a script means the same there.
    """

    name: ClassVar[str] = "fsdp2"
    version: ClassVar[int] = 2
    capabilities: ClassVar[Capabilities] = Capabilities(
        shards_parameters=True,
        lacks=SHARDS_LACK,
        accumulation=Sync.IN_SHARDS,
        takes_exchanged_layers=True,
        mesh_axes=frozenset({"dp_replicate", "dp_shard", "cp", "sp", "tp", "ep"}),
    )

    @property
    def checkpoint_format(self) -> str:
        """The format in which models and optimizers are saved; ``state_dict_type`` of the plugin chooses it."""
        return "full" if self._plugin.state_dict_type is StateDictType.FULL_STATE_DICT else "sharded"

    @property
    def has_gradients_in_parameters(self) -> bool:
        """Not with several copies of the model: torch keeps what is not reduced over them yet to itself."""
        return self._mesh.ndim == 1

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run; a single process gets a process group.

        Where the plugin says that rank 0 alone needs weights, libraries that load models are told by variables.

        Raises:
            ConfigError: If the precision exchanges layers that ranks are to share.
        """
        super().setup(context)
        _check_own_layers(context)
        plugin = self._plugin
        if plugin.cpu_ram_efficient_loading:
            enable_fsdp_ram_efficient_loading()
        self._mesh, self._layer_mesh = _meshes_of(context.layout, context.device.type)
        expert_mesh, self._dispatch_mesh = _expert_meshes_of(context.layout, context.device.type)
        self._sequences = sequence_axis(context.layout, context.parallelism, rank=context.topology.rank)
        self._settings = shard_settings(
            plugin,
            mesh=self._mesh,
            device=context.device,
            dtype=context.precision.dtype,
            has_autocast=self._has_autocast,
            expert_mesh=expert_mesh,
        )
        plugin.show_policy(self._settings.policy)
        self._gathering = context.precision.gathering
        self._models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._whole: weakref.WeakKeyDictionary[nn.Module, ReplicatedParameters] = weakref.WeakKeyDictionary()

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Transform and shard one model, in place; one that is sharded already is left as it is."""
        if is_sharded(model):
            self.context.precision.check_converted(model)
            self._cast_forward(model)
            self._models.add(model)
            return model
        kind = type(model).__name__
        before = named_tensors(model, include_buffers=False)
        for found in before:
            if found.tensor in self._replaced:
                raise ConfigError(
                    f"`{found.names[0]}` of the {kind} to prepare is part of a model that was prepared "
                    "before, and which has sharded it. Put both models into one module, and prepare that."
                )
        self.context.precision.convert_layers(model)
        plan = self._plan(model, dynamo=self.context.dynamo)
        shard_model(
            model,
            plan.groups,
            self._settings,
            whole=plan.whole,
            files=self._plugin.load_weights_from,
            cut_layers=[*plan.cut_layers, *self._wrapping()],
        )
        set_prefetching(
            model,
            plan.groups,
            forward=self._plugin.num_forward_prefetch,
            backward=self._plugin.num_backward_prefetch,
        )
        self._models.add(model)
        if self._layer_mesh is not None:
            share_random_state(self._layer_mesh, self.context.device)
        number = self._part_of_sequence(plan)
        if number is not None:
            draw_own_numbers(model, number=number, device=self.context.device)
        gather_once(model, plan.groups)
        names = [name for group in plan.groups for name in group.modules]
        check_unit_order(model, {name: model.get_submodule(name) for name in names}, kind=kind)
        self._whole[model] = ReplicatedParameters(model, map(model.get_parameter, plan.whole), self._mesh)
        lost = []
        for found in before:
            parameter = model.get_parameter(found.names[0])
            self._replaced.record(found.tensor, parameter)
            if parameter is not found.tensor and _has_hooks(found.tensor):
                lost.append(f"`{found.names[0]}`")
        if lost:
            warn_user(
                f"Hooks on {', '.join(lost)} of the {kind} are no longer called, since FSDP has replaced these "
                "parameters. Register them on the parameters of the prepared model."
            )
        self._cast_forward(model)
        return model

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Rebind ``optimizer`` to the shards of its parameters, and wrap it."""
        inner = inner_optimizer(optimizer)
        self._replaced.repoint(inner)
        if self._gathering is not None:
            self._gathering.watch(inner)
        prepared = super().prepare_optimizer(optimizer, device_placement=device_placement)
        prepared.step_within(separate_groups)
        return prepared

    def prepare_loader(self, loader: Any, *, device_placement: bool | None = None) -> Any:
        """Prepare ``loader``, which gives this rank its part of each sequence if the run wants loaders to cut them."""
        prepared = super().prepare_loader(loader, device_placement=device_placement)
        cuts = self._sequences is not None and self._sequences.cuts_batches
        return self.share_sequences(prepared) if cuts else prepared

    def share_sequences(self, loader: Any) -> Any:
        """Return a loader of this rank's part of each sequence, where ranks share them; else ``loader``."""
        return loader if self._sequences is None else self._sequences.part_of(loader)

    def share_buffers(
        self, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, no_restore: Set[torch.Tensor]
    ) -> AbstractContextManager[Any]:
        """Return a context in which ``buffers`` are this rank's part of them, where ranks share sequences."""
        if self._sequences is None:
            return _NOTHING
        return self._sequences.sharing.cutting(buffers, dims, no_restore)

    def optimizer_parameters(
        self, optimizer: torch.optim.Optimizer, models: Sequence[nn.Module]
    ) -> dict[str, torch.Tensor]:
        """Return the parameters that ``optimizer`` steps, by their names in the users' ``models``."""
        found = super().optimizer_parameters(optimizer, models)
        gathering = self._gathering
        if gathering is None:
            return found
        return {name: gathering.stored(parameter) for name, parameter in found.items()}

    def replaced_parameters(self) -> Iterable[torch.Tensor]:
        """Return the parameters from before sharding, and gathered ones, that somebody still holds."""
        self._reshard()
        return self._replaced

    def gradient_sync(self, model: nn.Module, *, sync: Sync) -> AbstractContextManager[Any]:
        """Return a context in which gradients are reduced over all ranks, over the shards only, or not at all."""
        if not isinstance(model, FSDPModule) or sync is Sync.NOW:
            return _NOTHING
        if sync is Sync.LATER:
            return unsynchronized(model, self._whole.get(model))
        return synchronized_in_shards(model) if self._mesh.ndim > 1 else _NOTHING

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor:
        """Clip the norm of all gradients together and return what it was. Communicates: all ranks."""
        chosen = self._shards_of(parameters)
        return clip_gradients(chosen, max_norm, norm_type, device=self.context.device)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each gradient value to plus or minus ``clip_value``."""
        clip_values(self._shards_of(parameters), clip_value)

    def model_state(self, model: nn.Module) -> dict[str, Any]:
        """Return the whole state on the CPU of rank 0, an empty dict on the others. All ranks must call it."""
        state = self.local_model_state(self.unwrap(model, keep_torch_compile=False))
        return gathered_state(state, is_receiver=self.context.topology.rank == 0)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load a whole state, of which every rank takes its parts."""
        return load_model_state(model, state, strict=strict)

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load a full state, of which every rank takes its parts."""
        super().load_optimizer_state(optimizer, sharded_optimizer_state(optimizer, state))

    def _cast_forward(self, model: nn.Module) -> None:
        """Make the forward pass cast the inputs of operations, unless a policy of the user does."""
        policy = self._settings.policy
        if policy.param_dtype is not None and self._plugin.chosen_policy is None:
            wrap_forward(
                model,
                device_type=self.context.device.type,
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
        return [self._replaced.newest(parameter) for parameter in chosen]

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
            for name, parameter in model.named_parameters():
                self._replaced.record(gathered[name], parameter)

    def _plan(self, model: nn.Module, *, dynamo: TorchDynamoPlugin | None) -> ShardPlan:
        """Return how ``model`` is sharded, which prepares its units; see `plan_sharding`."""
        return plan_sharding(
            model,
            self._plugin,
            self._settings,
            layer_mesh=self._layer_mesh,
            experts_of=self._experts_of,
            sequences=self._sequences,
            dynamo=dynamo,
        )

    def _part_of_sequence(self, plan: ShardPlan | None = None) -> int | None:
        """Return the number of this rank among those that have other tokens of the same sequences; None: it has all."""
        layout, axes = self.context.layout, ["cp", "sp"]
        if plan is not None and plan.layers is not None and plan.layers.is_in_sequence:
            axes.append("tp")
        return layout.index(self.context.topology.rank, *axes) if layout.size(*axes) > 1 else None

    def _experts_of(self, model: nn.Module, plan: ParallelPlan) -> ExpertParallel | None:
        """Return which experts of ``model`` are spread over ranks, None where the run spreads none."""
        if self._dispatch_mesh is None:
            return None
        layout = self.context.layout
        # Sharding averages over the ranks that hold the same experts, and these see the tokens of all ranks.
        num_holders = layout.size("dp_replicate", "edp_shard")
        return ExpertParallel(
            model,
            plan,
            self._dispatch_mesh,
            gradient_scale=num_holders / layout.num_loss_ranks,
            layer_mesh=self._layer_mesh,
        )

    def _wrapping(self) -> Iterable[Callable[[Sequence[NamedTensor]], None]]:
        """Return what makes weights ready to be gathered in the format of the precision."""
        if self._gathering is None:
            return ()
        return (partial(self._gathering.wrap, num_shards=self._mesh.size(self._mesh.ndim - 1)),)


def _check_own_layers(context: StrategyContext) -> None:
    shared = [axis for axis in ("tp", "ep") if context.layout.size(axis) > 1]
    if context.precision.has_own_layers and shared:
        raise ConfigError(
            f"`{shared[0]}_size` {context.layout.size(shared[0])} cuts layers, which `mixed_precision="
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
