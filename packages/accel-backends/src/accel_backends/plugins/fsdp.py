"""How parameters are sharded over the processes by torch's FSDP."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    FullOptimStateDictConfig,
    FullStateDictConfig,
    LocalOptimStateDictConfig,
    LocalStateDictConfig,
    MixedPrecision,
    MixedPrecisionPolicy,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy

from accel_backends.module_lookup import get_module_class_from_name
from accel_backends.plans.policies import UnitsPolicy, units_policy
from accel_backends.plugins import fsdp_values as values
from accel_backends.plugins import xla_fsdp
from accel_state.enums import DistributedType
from accel_state.environment import SETTINGS, environ
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
Prefetch = Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]
StateDictFormat = Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT", "LOCAL_STATE_DICT"]
WrapPolicy = Literal["transformer_based_wrap", "size_based_wrap", "no_wrap"]

_POLICIES: dict[str, Callable[..., Any] | None] = {
    "TRANSFORMER_BASED_WRAP": transformer_auto_wrap_policy,
    "SIZE_BASED_WRAP": size_based_auto_wrap_policy,
    "NO_WRAP": None,
}
_STATE_DICT_CONFIGS: dict[StateDictType, tuple[Callable[[], Any], Callable[[], Any]]] = {
    StateDictType.FULL_STATE_DICT: (
        functools.partial(FullStateDictConfig, offload_to_cpu=True, rank0_only=True),
        functools.partial(FullOptimStateDictConfig, offload_to_cpu=True, rank0_only=True),
    ),
    StateDictType.SHARDED_STATE_DICT: (
        functools.partial(ShardedStateDictConfig, offload_to_cpu=True),
        functools.partial(ShardedOptimStateDictConfig, offload_to_cpu=True),
    ),
    StateDictType.LOCAL_STATE_DICT: (
        functools.partial(LocalStateDictConfig, offload_to_cpu=True),
        functools.partial(LocalOptimStateDictConfig, offload_to_cpu=True),
    ),
}
_PER_MACHINE = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
# Fields of version 1 that version 2 has no use for, and the value that asks for nothing it would not do.
_OBSOLETE = {
    "backward_prefetch": "NO_PREFETCH",
    "forward_prefetch": False,
    "use_orig_params": True,
}
# Fields that only one version has, and the value that asks for nothing.
_ONLY_IN: dict[int, dict[str, Any]] = {
    1: {
        "state_dict_config": None,
        "optim_state_dict_config": None,
        "param_init_fn": None,
        "limit_all_gathers": True,
    },
    2: {
        "activation_checkpointing_offload": False,
        "parallel_plan": None,
        "load_weights_from": None,
        "num_forward_prefetch": 0,
        "num_backward_prefetch": 0,
    },
}


@dataclass
class FullyShardedDataParallelPlugin:
    """Settings of fully sharded data parallelism (FSDP). What is None is read from ``FSDP_*`` at construction.

    Version 2 is recommended: its parameters keep their names and number formats, parts of a model can be frozen, and
    checkpoints can be loaded by any number of processes. Values are brought into one form at construction: torch's
    enums in version 1, its policies in version 2.

    Args:
        fsdp_version: 1 or 2; 1 where neither this nor ``FSDP_VERSION`` says it.
        sharding_strategy: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, of version 1. In
            version 2 the first two stand for ``reshard_after_forward`` True and False.
        reshard_after_forward: Whether gathered parameters are given up after the forward pass (version 2), or a newer
            name for ``sharding_strategy`` (version 1).
        backward_prefetch: When the backward pass fetches the next unit: BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH
            (version 1).
        mixed_precision_policy: Number formats: a policy of torch, a dict of its fields, or ``"bf16"``, ``"fp16"``,
            ``"fp32"``, which leave outputs as computed; None follows ``mixed_precision`` of the `Accelerator`.
        auto_wrap_policy: How a model is cut into the units that are gathered together: a policy of torch or one of
            the three names.
        cpu_offload: Whether parameters, gradients and optimizer states are kept in the memory of the CPU.
        ignored_modules: Modules that stay whole, or a regular expression that matches their whole names.
        state_dict_type: How checkpoints are written; FULL_STATE_DICT by default in version 1, SHARDED_STATE_DICT in 2.
        state_dict_config: Details of that for models, of the class that belongs to the type (version 1).
        optim_state_dict_config: The same for optimizers (version 1).
        limit_all_gathers: Whether few units are gathered at the same time (version 1; always so in 2).
        use_orig_params: Whether an optimizer sees the original parameters (version 1; always so in 2).
        param_init_fn: Allocates a module that is on the meta device (version 1).
        sync_module_states: Whether the ranks begin with the parameters of rank 0; they do so in any case.
        forward_prefetch: Whether the forward pass fetches the next unit, as in the first step (version 1).
        activation_checkpointing: Whether activations are computed again in the backward pass.
        activation_checkpointing_offload: Whether the inputs of such layers are kept on the CPU (version 2).
        cpu_ram_efficient_loading: Whether only the first process holds the weights before the model is prepared.
        transformer_cls_names_to_wrap: Classes of the layers that are units, by ``transformer_based_wrap``; without
            them, those that the model names in ``_no_split_modules``.
        min_num_params: Parameters from which a module is a unit, by ``size_based_wrap``; 100 million by default, and
            0 for none but the model itself.
        reduce_dtype: Number format in which gradients are averaged where ``mixed_precision_policy`` is not given;
            None is fp32.
        parallel_plan: What the model is made of, where it does not say so itself (version 2).
        load_weights_from: Safetensors files with the weights of models on the meta device, of which each rank reads
            its own rows when a model is prepared: a file, an index, or a folder with one of them (version 2).
        selective_checkpointing: Whether activation checkpointing keeps the results of attention and of every second
            matrix product, so that less is computed again.
        num_forward_prefetch: Units that are fetched ahead in the forward pass (version 2); 0 leaves it to torch.
        num_backward_prefetch: The same for the backward pass (version 2).
        xla_fsdp_v2: Whether to shard over the XLA devices (TPU) that one process drives. XLA's compiler then decides
            when parameters are gathered; of the other fields only those that choose units have a meaning.
        xla_fsdp_settings: Settings of that: ``shard_output``, a function of an output and the mesh that marks how the
            outputs of units are spread.
        xla_fsdp_grad_ckpt: Whether its units compute activations again in the backward pass.

    Raises:
        ConfigError: If a value is unknown, contradicts another, or has no effect in the version.
    """

    distributed_type: ClassVar[DistributedType] = DistributedType.FSDP
    _policy_of_run = None

    fsdp_version: int | None = None
    sharding_strategy: Sharding | ShardingStrategy | None = None
    reshard_after_forward: Sharding | ShardingStrategy | bool | None = None
    backward_prefetch: Prefetch | BackwardPrefetch | None = None
    mixed_precision_policy: (
        dict[str, Any] | Literal["bf16", "fp16", "fp32"] | MixedPrecision | MixedPrecisionPolicy | None
    ) = None
    auto_wrap_policy: Callable[..., Any] | WrapPolicy | None = None
    cpu_offload: bool | CPUOffload | CPUOffloadPolicy | None = None
    ignored_modules: Iterable[nn.Module] | str | None = None
    state_dict_type: StateDictFormat | StateDictType | None = None
    state_dict_config: FullStateDictConfig | ShardedStateDictConfig | None = None
    optim_state_dict_config: FullOptimStateDictConfig | ShardedOptimStateDictConfig | None = None
    limit_all_gathers: bool = True
    use_orig_params: bool | None = None
    param_init_fn: Callable[[nn.Module], None] | None = None
    sync_module_states: bool | None = None
    forward_prefetch: bool | None = None
    activation_checkpointing: bool | None = None
    activation_checkpointing_offload: bool | None = None
    cpu_ram_efficient_loading: bool | None = None
    transformer_cls_names_to_wrap: list[str] | None = None
    min_num_params: int | None = None
    reduce_dtype: torch.dtype | str | None = field(default=None, kw_only=True)
    parallel_plan: Any = field(default=None, kw_only=True)
    load_weights_from: str | os.PathLike[str] | None = field(default=None, kw_only=True)
    selective_checkpointing: bool = field(default=False, kw_only=True)
    num_forward_prefetch: int = field(default=0, kw_only=True)
    num_backward_prefetch: int = field(default=0, kw_only=True)
    xla_fsdp_v2: bool = field(default=False, kw_only=True)
    xla_fsdp_settings: dict[str, Any] | None = field(default=None, kw_only=True)
    xla_fsdp_grad_ckpt: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self.fsdp_version = self._version()
        self._check_fields_of_the_other_version()
        if self.fsdp_version == 1:
            self._complete_version_1()
        else:
            self._complete_version_2()
        if self.selective_checkpointing and not self.activation_checkpointing:
            raise ConfigError(
                "`selective_checkpointing` has no effect without `activation_checkpointing`. Set both."
            )
        self._complete_units()
        self.set_cpu_offload()
        self.validate_cpu_offload()
        if self.xla_fsdp_v2 and values.given_or_set("state_dict_type", self.state_dict_type) is None:
            self.state_dict_type = "FULL_STATE_DICT"
        self.set_state_dict_type()
        self.ignored_modules = values.modules_of(self.ignored_modules)
        self._complete_precision()
        xla_fsdp.check_fields(vars(self))

    @property
    def strategy(self) -> str:
        """The strategy that these settings are for."""
        if self.xla_fsdp_v2:
            return "xla"
        return "fsdp2" if self.fsdp_version == 2 else "fsdp"

    @property
    def chosen_policy(self) -> MixedPrecision | MixedPrecisionPolicy | None:
        """The ``mixed_precision_policy`` of the user; None if it follows the `Accelerator`."""
        policy: Any = self.mixed_precision_policy
        return None if policy is self._policy_of_run else policy

    def show_policy(self, policy: MixedPrecision | MixedPrecisionPolicy) -> None:
        """Let ``mixed_precision_policy``, which others read, be the one that the run follows."""
        if self.chosen_policy is None and policy.param_dtype is not None:
            self.mixed_precision_policy = self._policy_of_run = policy

    @property
    def wrap_policy_name(self) -> str | None:
        """The name of the policy that cuts the model into units, None for a function of one's own or no choice."""
        policy = getattr(self.auto_wrap_policy, "func", self.auto_wrap_policy)
        if policy is None:
            return "NO_WRAP" if self._is_no_wrap else None
        return next((name for name, function in _POLICIES.items() if function is policy), None)

    def units_policy(self) -> UnitsPolicy | None:
        """Return the policy that cuts the model into units, None where the model is asked itself."""
        return units_policy(
            self.wrap_policy_name or self.auto_wrap_policy,
            class_names=self.transformer_cls_names_to_wrap,
            min_num_params=self.min_num_params,
        )

    def default_layout(self, topology: Topology) -> MeshLayout:
        """Return how the ranks are arranged where no `ParallelismConfig` says it: over how many each copy is cut."""
        num_shards = topology.world_size
        if self.sharding_strategy is ShardingStrategy.NO_SHARD:
            num_shards = 1
        elif self.sharding_strategy in _PER_MACHINE:
            num_shards = topology.local_world_size
        return MeshLayout(dp_replicate=topology.world_size // num_shards, dp_shard=num_shards)

    def before_device(self) -> None:
        """Settle how this process drives its devices, before it opens them.

        Raises:
            ConfigError: If it has opened them otherwise.
        """
        if self.xla_fsdp_v2:
            xla_fsdp.use_spmd()

    def set_auto_wrap_policy(self, model: nn.Module) -> None:
        """Complete ``auto_wrap_policy`` with what only the model knows: the classes of its layers.

        Raises:
            ConfigError: If no class is named, or the model has no module of one that is.
        """
        if self.auto_wrap_policy is transformer_auto_wrap_policy:
            self.auto_wrap_policy = functools.partial(
                transformer_auto_wrap_policy, transformer_layer_cls=self._layer_classes(model)
            )
        elif self.auto_wrap_policy is size_based_auto_wrap_policy and self.min_num_params is not None:
            self._is_no_wrap = self.min_num_params == 0
            policy = functools.partial(size_based_auto_wrap_policy, min_num_params=self.min_num_params)
            self.auto_wrap_policy = None if self._is_no_wrap else policy

    def set_mixed_precision(
        self, mixed_precision: str | torch.dtype, buffer_autocast: bool = False, override: bool = False
    ) -> None:
        """Set the policy of mixed precision to one number format for parameters and computation.

        Gradients are averaged in ``reduce_dtype``.

        Args:
            mixed_precision: ``"bf16"``, ``"fp16"``, ``"fp32"`` or the `torch.dtype`.
            buffer_autocast: Whether buffers stay in fp32 (version 1).
            override: Whether a policy that is there already is replaced; otherwise it stays.
        """
        if self.mixed_precision_policy is not None and not override:
            return
        dtype = values.dtype_of("mixed_precision", mixed_precision)
        policy: dict[str, Any] = {"param_dtype": dtype, "reduce_dtype": self.reduce_dtype or "fp32"}
        if self.fsdp_version == 1:
            policy["buffer_dtype"] = "fp32" if buffer_autocast else dtype
        self.mixed_precision_policy = values.policy_of(self._version(), policy)

    def set_state_dict_type(self, state_dict_type: str | StateDictType | None = None) -> None:
        """Set how checkpoints are written, and the details of that which are not given."""
        asked = self.state_dict_type if state_dict_type is None else state_dict_type
        self.state_dict_type = values.checkpoints_of(self._version(), asked)
        if state_dict_type is not None:
            self.state_dict_config = self.optim_state_dict_config = None
        for name, make in zip(
            ("state_dict_config", "optim_state_dict_config"),
            _STATE_DICT_CONFIGS[self.state_dict_type],
            strict=True,
        ):
            fitting = make()
            given = getattr(self, name)
            if given is None:
                setattr(self, name, fitting)
            elif type(given) is not type(fitting):
                raise ConfigError(
                    f"`{name}` is a `{type(given).__name__}`, but `state_dict_type` {self.state_dict_type.name} needs "
                    f"a `{type(fitting).__name__}`."
                )

    def set_cpu_offload(self) -> None:
        """Bring ``cpu_offload`` into the form of the version: `CPUOffload`, or a policy of version 2."""
        self.cpu_offload = values.offload_of(self._version(), self.cpu_offload)

    def validate_cpu_offload(self) -> None:
        """Refuse a ``cpu_offload`` that is not of the version's kind."""
        values.check_offload(self._version(), self.cpu_offload)

    def validate_mixed_precision_policy(self) -> None:
        """Refuse a ``mixed_precision_policy`` that is not of the version's kind."""
        values.check_policy(self._version(), self.mixed_precision_policy)

    def _version(self) -> int:
        version = environ.read("fsdp_version") if self.fsdp_version is None else self.fsdp_version
        if type(version) is not int or version not in (1, 2):
            raise ConfigError(f"`fsdp_version` must be 1 or 2, got {version!r}.")
        return version

    def _check_fields_of_the_other_version(self) -> None:
        other = 3 - self._version()
        idle = [name for name, nothing in _ONLY_IN[other].items() if self._asks_for_more(name, nothing)]
        if idle:
            raise ConfigError(
                f"{_listed(idle)} {'is' if len(idle) == 1 else 'are'} for `fsdp_version={other}` and would have no "
                f"effect with version {self.fsdp_version}. Leave {'it' if len(idle) == 1 else 'them'} out, or set the "
                "version."
            )

    def _complete_version_1(self) -> None:
        self.sharding_strategy = values.sharding_of(1, self.sharding_strategy, self.reshard_after_forward)
        self.reshard_after_forward = None
        self.backward_prefetch = values.prefetch_of(self.backward_prefetch)
        self._read_switches("use_orig_params", "forward_prefetch")
        self._read_switches("activation_checkpointing", "cpu_ram_efficient_loading")
        self.activation_checkpointing_offload = False
        asked = self.sync_module_states
        self._read_switches("sync_module_states")
        if self.cpu_ram_efficient_loading and not self.sync_module_states:
            if asked is False:
                warn_user(
                    "`sync_module_states=False` has no effect with `cpu_ram_efficient_loading`: only rank 0 has the "
                    "weights, and they are sent to all ranks. Leave it out.",
                )
            self.sync_module_states = True
        if self.sync_module_states and self.param_init_fn is None:
            self.param_init_fn = allocate

    def _complete_version_2(self) -> None:
        if type(self.reshard_after_forward) is int:
            raise ConfigError(
                f"`reshard_after_forward` is {self.reshard_after_forward}: resharding to groups of ranks is not "
                "supported. Set it to True or False."
            )
        self.reshard_after_forward = values.sharding_of(2, self.sharding_strategy, self.reshard_after_forward)
        self.sharding_strategy = None
        self._read_switches(
            "activation_checkpointing", "activation_checkpointing_offload", "cpu_ram_efficient_loading"
        )
        if not isinstance(self.load_weights_from, str | os.PathLike | None):
            raise ConfigError(
                f"`load_weights_from` must be the path of a safetensors file, an index or their folder, got "
                f"{self.load_weights_from!r}."
            )
        if self.activation_checkpointing_offload and not self.activation_checkpointing:
            raise ConfigError(
                "`activation_checkpointing_offload` has no effect without `activation_checkpointing`. Set both."
            )
        for name in ("num_forward_prefetch", "num_backward_prefetch"):
            values.number_of(name, getattr(self, name))
        obsolete = [name for name, nothing in _OBSOLETE.items() if self._asks_for_more(name, nothing)]
        if obsolete:
            warn_user(
                f"{_listed(obsolete)} {'is' if len(obsolete) == 1 else 'are'} ignored: FSDP version 2 works without. "
                "`accel to-fsdp2` converts a config file.",
            )
        self.backward_prefetch = self.forward_prefetch = self.sync_module_states = self.use_orig_params = None

    def _asks_for_more(self, name: str, nothing: Any) -> bool:
        """Tell whether a field, or the variable of one that is None, asks for more than ``nothing``."""
        asked = getattr(self, name)
        if f"fsdp_{name}" in SETTINGS:
            asked = values.given_or_set(name, asked)
        return asked is not None and asked != nothing

    def _read_switches(self, *names: str) -> None:
        for name in names:
            given = getattr(self, name)
            setattr(
                self, name, environ.read(f"fsdp_{name}") if given is None else values.word_of(name, given)
            )

    def _complete_units(self) -> None:
        policy = self.auto_wrap_policy
        self._is_no_wrap = False
        if policy is None or isinstance(policy, str):
            word = values.given_or_set("auto_wrap_policy", policy)
            self._is_no_wrap = word == "NO_WRAP"
            self.auto_wrap_policy = None if word is None else _POLICIES[word]
        elif not callable(policy):
            raise ConfigError(
                f"`auto_wrap_policy` is a `{type(policy).__name__}`, but it must be a function, or "
                f"{values.accepted('auto_wrap_policy')}."
            )
        self._complete_names_of_layers(is_policy_given=policy is not None)
        self._complete_size()

    def _complete_names_of_layers(self, *, is_policy_given: bool) -> None:
        is_given = self.transformer_cls_names_to_wrap is not None
        names = values.names_of(self.transformer_cls_names_to_wrap)
        if self.auto_wrap_policy is transformer_auto_wrap_policy:
            self.transformer_cls_names_to_wrap = names
        elif names and (is_given or not is_policy_given):
            raise ConfigError(
                "`transformer_cls_names_to_wrap` has no effect unless `auto_wrap_policy` is `transformer_based_wrap`. "
                "Set that policy, or leave the names out."
            )

    def _complete_size(self) -> None:
        is_given = self.min_num_params is not None
        if self.auto_wrap_policy is size_based_auto_wrap_policy:
            size = self.min_num_params if is_given else environ.read("fsdp_min_num_params")
            self.min_num_params = (
                None if size is None else values.number_of("min_num_params", size, minimum=0)
            )
        elif self.min_num_params:
            raise ConfigError(
                "`min_num_params` has no effect unless `auto_wrap_policy` is `size_based_wrap`. "
                "Set that policy, or leave the number out."
            )

    def _complete_precision(self) -> None:
        self.reduce_dtype = values.dtype_of("reduce_dtype", self.reduce_dtype)
        policy = self.mixed_precision_policy
        if policy is None:
            return
        if isinstance(policy, str):
            self.set_mixed_precision(policy, override=True)
        elif self.reduce_dtype is not None:
            raise ConfigError(
                "`reduce_dtype` has no effect beside a `mixed_precision_policy`, which has its own. Set it there."
            )
        elif isinstance(policy, dict):
            self.mixed_precision_policy = values.policy_of(self._version(), policy)
        self.validate_mixed_precision_policy()

    def _layer_classes(self, model: nn.Module) -> set[type[nn.Module]]:
        names = self.transformer_cls_names_to_wrap or list(getattr(model, "_no_split_modules", None) or ())
        if not names:
            raise ConfigError(
                f"`transformer_based_wrap` needs the classes of the layers, and `{type(model).__name__}` names none in "
                "`_no_split_modules`. Pass them as `transformer_cls_names_to_wrap`."
            )
        found = {name: get_module_class_from_name(model, name) for name in names}
        missing = [name for name, kind in found.items() if kind is None]
        if missing and (self.transformer_cls_names_to_wrap or len(missing) == len(names)):
            present = sorted({type(module).__name__ for module in model.modules()})
            raise ConfigError(
                f"Could not find the transformer layer class {', '.join(missing)} in the model. "
                f"`transformer_cls_names_to_wrap` names it, and the modules of `{type(model).__name__}` are: "
                f"{', '.join(present)}. Name some of these."
            )
        return {kind for kind in found.values() if kind is not None}


def allocate(module: nn.Module) -> None:
    """Give the parameters of one module memory on the device of this process; what they hold is undefined."""
    from accel_state.partial_state import PartialState

    module.to_empty(device=PartialState().device, recurse=False)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
