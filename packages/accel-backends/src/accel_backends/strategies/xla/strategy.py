"""XLA devices: one device, several processes of one device each, or one process that drives several (SPMD)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from accel_backends.fsdp.parameters import ReplacedParameters
from accel_backends.optimizer import AcceleratedOptimizer
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin, settings_of_run
from accel_backends.strategies.capabilities import NOT_APART, ONLY_DDP_HAS_HOOKS, Capabilities, Feature, Sync
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.strategy import Strategy
from accel_backends.strategies.xla import packages
from accel_backends.strategies.xla.gradients import GradientReduction
from accel_backends.strategies.xla.number_formats import set_storage
from accel_backends.strategies.xla.sharding import FullyShardedModels, mesh_of_run
from accel_backends.unwrap import stepped_optimizer
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError


class XlaStrategy(Strategy):
    """The strategy `xla`.

    A model that is moved to an XLA device has new parameters there: optimizers that were made before step those.
    Gradients of several processes are averaged where they are first used after the backward pass.
    """

    name: ClassVar[str] = "xla"
    replaced: ReplacedParameters
    capabilities: ClassVar[Capabilities] = Capabilities(
        accumulation=Sync.LATER,
        devices=frozenset({"xla"}),
        lacks={
            Feature.JOIN: "all processes run the same programs. Let all get as many batches with `even_batches=True`.",
            Feature.COMMUNICATION_HOOK: ONLY_DDP_HAS_HOOKS,
            Feature.LOCAL_SGD: NOT_APART,
        },
    )

    def setup(self, context: StrategyContext) -> None:
        """Take in the run.

        Raises:
            ConfigError: If the device would store other numbers than the run asks for, or is to do what only a single
                process can.
        """
        super().setup(context)
        shards_parameters = isinstance(context.plugin, FullyShardedDataParallelPlugin)
        runtime = packages.runtime()
        if shards_parameters:
            self._check_one_process("`xla_fsdp_v2`")
        set_storage(dtype=context.precision.dtype)
        self._sharding: FullyShardedModels | None = None
        if runtime.is_spmd():
            self._check_one_process("SPMD (`torch_xla.runtime.use_spmd`)")
            mesh = mesh_of_run(shards_parameters=shards_parameters)
            if shards_parameters:
                read_config, _ = settings_of_run(context.plugin)
                self._sharding = FullyShardedModels(mesh, read_config)
        self._gradients = GradientReduction(context.topology.world_size, context.gradient)
        self.replaced = ReplacedParameters()
        self._hooked: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def prepare_model(
        self, model: nn.Module, *, device_placement: bool | None = None, evaluation_mode: bool = False
    ) -> nn.Module:
        """Place, convert, transform and shard one model, and note which parameters it has now."""
        before = named_tensors(model, include_buffers=False)
        prepared = super().prepare_model(
            model, device_placement=device_placement, evaluation_mode=evaluation_mode
        )
        self.replaced.record((found.tensor, model.get_parameter(found.names[0])) for found in before)
        return prepared

    def _parallelise(self, model: nn.Module) -> nn.Module:
        """Let all processes begin with the weights of rank 0, and shard them where the settings say so."""
        if self.context.topology.world_size > 1:
            packages.model().broadcast_master_param(model)
        self._gradients.watch(model.parameters())
        if self._sharding is not None:
            self._sharding.shard(model)
        return model

    def prepare_optimizer(
        self, optimizer: torch.optim.Optimizer, *, device_placement: bool | None = None
    ) -> AcceleratedOptimizer:
        """Let ``optimizer`` step the parameters on the device, with gradients of all processes, and wrap it."""
        inner = stepped_optimizer(optimizer)
        self.replaced.repoint(inner)
        if self._sharding is not None:
            self._sharding.spread_states(inner)
        if self.context.topology.world_size > 1 and inner not in self._hooked:
            inner.register_step_pre_hook(self._gradients.before_step)
            self._hooked.add(inner)
        return super().prepare_optimizer(optimizer, device_placement=device_placement)

    def scale_gradients(self, models: Iterable[nn.Module], factor: float | torch.Tensor) -> None:
        """Multiply the gradients of ``models``, averaged over the processes."""
        chosen = list(models)
        self._gradients.reduce(parameter for model in chosen for parameter in model.parameters())
        super().scale_gradients(chosen, factor)

    def clip_grad_norm(
        self, parameters: Iterable[torch.Tensor] | torch.Tensor, max_norm: float, norm_type: float = 2
    ) -> torch.Tensor | None:
        """Clip the norm of all gradients together, averaged if they are complete, and return what it was."""
        return super().clip_grad_norm(self._complete(parameters), max_norm, norm_type)

    def clip_grad_value(self, parameters: Iterable[torch.Tensor] | torch.Tensor, clip_value: float) -> None:
        """Clip each gradient value, averaged over the processes, to plus or minus ``clip_value``."""
        super().clip_grad_value(self._complete(parameters), clip_value)

    def load_model_state(self, model: nn.Module, state: Mapping[str, Any], *, strict: bool = True) -> Any:
        """Load the state into the user's model, and spread it as before."""
        result = super().load_model_state(model, state, strict=strict)
        if self._sharding is not None:
            self._sharding.spread(model)
        return result

    def load_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        """Load the state into ``optimizer``, and spread it as before."""
        super().load_optimizer_state(optimizer, state)
        if self._sharding is not None:
            self._sharding.spread_states(optimizer)

    def _complete(self, parameters: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        chosen = [self.replaced.newest(parameter) for parameter in given]
        if self.context.gradient.sync_gradients:
            self._gradients.reduce(chosen)
        return chosen

    def _check_one_process(self, what: str) -> None:
        number = max(self.context.topology.world_size, int(packages.runtime().process_count()))
        if number > 1:
            raise ConfigError(
                f"{what} is not possible on XLA devices with {number} processes. Start one process, or leave it out: "
                "processes of one device each average their gradients."
            )
