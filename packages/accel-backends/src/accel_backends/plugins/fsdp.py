"""How parameters are sharded over the processes by torch's FSDP."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
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
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardedOptimStateDictConfig,
    ShardedStateDictConfig,
    ShardingStrategy,
    StateDictType,
)
from torch.distributed.fsdp.wrap import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from torch.distributed.tensor import Shard

from accel_backends.fsdp.config import FSDPConfig
from accel_backends.module_lookup import get_module_class_from_name
from accel_backends.plans.policies import UnitsPolicy, units_policy
from accel_backends.plugins import fsdp_values as values
from accel_backends.plugins import xla_fsdp
from accel_state.enums import DistributedType
from accel_state.environment import SETTINGS, environ
from accel_state.errors import ConfigError
from accel_state.fsdp_versions import state_dict_type_of
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

Sharding = Literal["FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"]
Prefetch = Literal["BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"]
StateDictFormat = Literal["FULL_STATE_DICT", "SHARDED_STATE_DICT"]
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
}
_RESHARDING = (ShardingStrategy.FULL_SHARD, ShardingStrategy.HYBRID_SHARD)
_PER_MACHINE = (ShardingStrategy.HYBRID_SHARD, ShardingStrategy._HYBRID_SHARD_ZERO2)
# Fields of version 1 that version 2 has no use for, and the value that asks for nothing it would not do.
_OBSOLETE = {
    "backward_prefetch": "NO_PREFETCH",
    "forward_prefetch": False,
    "use_orig_params": True,
}
# What `fully_shard` always does of version 1.
_ALWAYS = {"backward_prefetch": "BACKWARD_PRE", "limit_all_gathers": True}
# Fields that only version 1 has, and the value that asks for nothing.
_ONLY_IN_1 = {
    "state_dict_config": None,
    "optim_state_dict_config": None,
    "param_init_fn": None,
    "limit_all_gathers": True,
}


@dataclass
class FullyShardedDataParallelPlugin:
    """Settings of fully sharded data parallelism (FSDP). What is None is read from ``FSDP_*`` at construction.

    The version says in which words settings are given; models are sharded by `torch.distributed.fsdp.fully_shard` with
    both. Values are brought into one form at construction: torch's enums in version 1, its policies in version 2.

    Args:
        fsdp_version: 1 or 2; 1 where neither this nor ``FSDP_VERSION`` says it.
        sharding_strategy: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2, of version 1. The
            first two stand for ``reshard_after_forward`` True and False, the hybrids shard over the ranks of a machine.
        reshard_after_forward: Whether gathered parameters are given up after the forward pass (version 2), or a newer
            name for ``sharding_strategy`` (version 1). A number of ranks (version 2): so many, such as those of a
            machine, keep them together until the backward pass, which then gathers among these.
        backward_prefetch: When the backward pass fetches the next unit: BACKWARD_PRE, which always happens. Other
            values are only shown (version 1).
        mixed_precision_policy: Number formats: a policy of torch, a dict of its fields, or ``"bf16"``, ``"fp16"``,
            ``"fp32"``, which leave outputs as computed; None follows ``mixed_precision`` of the `Accelerator`.
        auto_wrap_policy: How a model is cut into the units that are gathered together: a policy of torch or one of
            the three names.
        cpu_offload: Whether parameters, gradients and optimizer states are kept in the memory of the CPU.
        ignored_modules: Modules that stay whole, or a regular expression that matches their whole names.
        state_dict_type: How checkpoints are written; FULL_STATE_DICT by default in version 1, SHARDED_STATE_DICT in 2.
        state_dict_config: Details of that for models, of the class that belongs to the type, for libraries that read
            them (version 1).
        optim_state_dict_config: The same for optimizers (version 1).
        limit_all_gathers: Whether few units are gathered at the same time; always so (version 1).
        use_orig_params: Whether an optimizer sees the original parameters; always so (version 1).
        param_init_fn: Gives a module on the meta device its values, on rank 0 (version 1).
        sync_module_states: Whether the ranks begin with the parameters of rank 0; they do so in any case.
        forward_prefetch: Whether the forward pass fetches the next unit; sets ``num_forward_prefetch`` to 1
            (version 1).
        activation_checkpointing: Whether activations are computed again in the backward pass.
        activation_checkpointing_offload: Whether the inputs of such layers are kept on the CPU.
        cpu_ram_efficient_loading: Whether only the first process holds the weights before the model is prepared.
        transformer_cls_names_to_wrap: Classes of the layers that are units, by ``transformer_based_wrap``; without
            them, those that the model names in ``_no_split_modules``.
        min_num_params: Parameters from which a module is a unit, by ``size_based_wrap``; 100 million by default, and
            0 for none but the model itself.
        reduce_dtype: Number format in which gradients are averaged where ``mixed_precision_policy`` is not given;
            None is fp32.
        parallel_plan: What the model is made of, where it does not say so itself.
        load_weights_from: Safetensors files with the weights of models on the meta device, of which each rank reads
            its own rows when a model is prepared: a file, an index, or a folder with one of them.
        selective_checkpointing: Whether activation checkpointing keeps the results of attention and of every second
            matrix product, so that less is computed again.
        num_forward_prefetch: Units that are fetched ahead in the forward pass; 0 leaves it to torch.
        num_backward_prefetch: The same for the backward pass.
        shard_placement_fn: Returns along which dimension a parameter is sharded, as ``Shard(1)``, or None for the
            first; another dimension must be divisible by the number of ranks that share it.
        forward_methods: Methods of the model, such as ``encode``, that use its parameters directly and are called in
            place of its forward; ``blocks.0.encode`` is one of a unit.
        reduce_once: Whether `accumulate` reduces gradients in the last micro-batch only, as Accelerate does: less
            communication, and each rank has full gradients in between.
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
    reshard_after_forward: Sharding | ShardingStrategy | bool | int | None = None
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
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = field(default=None, kw_only=True)
    forward_methods: Sequence[str] = field(default=(), kw_only=True)
    reduce_once: bool = field(default=False, kw_only=True)
    xla_fsdp_v2: bool = field(default=False, kw_only=True)
    xla_fsdp_settings: dict[str, Any] | None = field(default=None, kw_only=True)
    xla_fsdp_grad_ckpt: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        self._set = environ.names_set("fsdp_")
        self.fsdp_version = self._version()
        if self.fsdp_version == 1:
            self._complete_version_1()
        else:
            self._complete_version_2()
        self._complete_recomputation()
        if not isinstance(self.load_weights_from, str | os.PathLike | None):
            raise ConfigError(
                f"`load_weights_from` must be the path of a safetensors file, an index or their folder, got "
                f"{self.load_weights_from!r}."
            )
        for name in ("num_forward_prefetch", "num_backward_prefetch"):
            values.number_of(name, getattr(self, name))
        self._complete_units()
        self.set_cpu_offload()
        self.validate_cpu_offload()
        if self.xla_fsdp_v2 and self._given_or_set("state_dict_type", self.state_dict_type) is None:
            self.state_dict_type = "FULL_STATE_DICT"
        self.set_state_dict_type()
        self.ignored_modules = values.modules_of(self._or_set("ignored_modules"))
        self._complete_precision()
        if self.xla_fsdp_v2 or self.xla_fsdp_settings or self.xla_fsdp_grad_ckpt:
            xla_fsdp.check_fields(vars(self))

    @property
    def strategy(self) -> str:
        """The strategy that these settings are for."""
        return "xla" if self.xla_fsdp_v2 else "fsdp2"

    @property
    def chosen_policy(self) -> MixedPrecision | MixedPrecisionPolicy | None:
        """The ``mixed_precision_policy`` of the user; None if it follows the `Accelerator`."""
        policy: Any = self.mixed_precision_policy
        return None if policy is self._policy_of_run else policy

    def show_policy(self, policy: MixedPrecisionPolicy) -> None:
        """Let ``mixed_precision_policy``, which others read, be the one that the run follows."""
        if self.chosen_policy is None and policy.param_dtype is not None:
            shown: Any = policy
            if self.fsdp_version == 1:
                shown = MixedPrecision(param_dtype=policy.param_dtype, reduce_dtype=policy.reduce_dtype)
            self.mixed_precision_policy = self._policy_of_run = shown

    def config(self, dtype: torch.dtype | None = None, *, has_autocast: bool = True) -> FSDPConfig:
        """Return the settings as they are now in the types of `fully_shard`.

        Args:
            dtype: What the run computes in if no ``mixed_precision_policy`` was given; None casts nothing.
            has_autocast: Whether autocast casts the inputs of operations, so that inputs of modules stay as they are.
        """
        policy: Any = self.chosen_policy
        reduce_dtype: Any = self.reduce_dtype
        if isinstance(policy, MixedPrecision):
            dtype, reduce_dtype = policy.param_dtype, policy.reduce_dtype or policy.param_dtype
            is_half = dtype in (torch.float16, torch.bfloat16)
            policy = None if is_half else MixedPrecisionPolicy(dtype, reduce_dtype)
        casts_forward = policy is None and dtype is not None
        if policy is None:
            reduced = reduce_dtype or (None if dtype is None else torch.float32)
            policy = MixedPrecisionPolicy(dtype, reduced, None, not has_autocast)
        offload: Any = self.cpu_offload
        if isinstance(offload, CPUOffload):
            is_pinned = torch.accelerator.is_available()
            offload = CPUOffloadPolicy(pin_memory=is_pinned) if offload.offload_params else OffloadPolicy()
        ignored: Any = self.ignored_modules
        reshard: Any = self.reshard_after_forward
        if self.fsdp_version == 1:
            reshard = self.sharding_strategy in _RESHARDING
        return FSDPConfig(
            policy=policy,
            casts_forward=casts_forward,
            offload=offload,
            reshard_after_forward=reshard,
            shard_placement_fn=self.shard_placement_fn,
            units=self.units_policy(),
            parallel_plan=self.parallel_plan,
            ignored_modules=ignored,
            activation_checkpointing=bool(self.activation_checkpointing) or self.xla_fsdp_grad_ckpt,
            activation_checkpointing_offload=bool(self.activation_checkpointing_offload),
            selective_checkpointing=self.selective_checkpointing,
            num_forward_prefetch=self.num_forward_prefetch or int(bool(self.forward_prefetch)),
            num_backward_prefetch=self.num_backward_prefetch,
            files=self.load_weights_from,
            init_module=self.param_init_fn,
            cpu_ram_efficient_loading=bool(self.cpu_ram_efficient_loading),
            forward_methods=self.forward_methods,
            reduces_once=self.reduce_once,
            shard_output=(self.xla_fsdp_settings or {}).get("shard_output"),
        )

    @property
    def wrap_policy_name(self) -> str | None:
        """The name of the policy that cuts the model into units, None for a function of one's own or no choice."""
        policy = getattr(self.auto_wrap_policy, "func", self.auto_wrap_policy)
        if policy is None:
            return "NO_WRAP" if self._is_no_wrap else None
        return next((name for name, function in _POLICIES.items() if function is policy), None)

    def units_policy(self) -> UnitsPolicy | None:
        """Return the policy that cuts the model into units, None where the model is asked itself."""
        policy = self.wrap_policy_name or self.auto_wrap_policy
        if policy is None:
            return None
        return units_policy(
            policy,
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
        word = state_dict_type_of(self._version(), self._given_or_set("state_dict_type", asked))
        self.state_dict_type = StateDictType[word]
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
        given = self._or_set("cpu_offload", setting="offload_params")
        self.cpu_offload = values.offload_of(self._version(), given)

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

    def _complete_version_1(self) -> None:
        self.sharding_strategy = self._sharding(1)
        self.reshard_after_forward = None
        others = [name for name, same in _ALWAYS.items() if self._asks_for_more(name, same)]
        if others:
            warn_user(
                f"{_listed(others)} {'has' if len(others) == 1 else 'have'} no effect: `fully_shard`, which shards "
                "models in both versions of FSDP, gathers the next unit in the backward pass, and few at a time."
            )
        self.backward_prefetch = values.prefetch_of(self.backward_prefetch)
        self._read_switches("use_orig_params", "forward_prefetch", "cpu_ram_efficient_loading")
        asked = self.sync_module_states
        self._read_switches("sync_module_states")
        if self.cpu_ram_efficient_loading and not self.sync_module_states:
            if asked is False:
                warn_user(
                    "`sync_module_states=False` has no effect with `cpu_ram_efficient_loading`: only rank 0 has the "
                    "weights, and they are sent to all ranks. Leave it out.",
                )
            self.sync_module_states = True

    def _complete_version_2(self) -> None:
        idle = [name for name, nothing in _ONLY_IN_1.items() if self._asks_for_more(name, nothing)]
        if idle:
            raise ConfigError(
                f"{_listed(idle)} {'is' if len(idle) == 1 else 'are'} for `fsdp_version=1` and would have no effect "
                f"with version 2. Leave {'it' if len(idle) == 1 else 'them'} out, or set the version."
            )
        if type(self.reshard_after_forward) is int:
            values.number_of("reshard_after_forward", self.reshard_after_forward, minimum=2)
            if self.sharding_strategy is not None:
                raise ConfigError(
                    "`sharding_strategy` and a number of ranks in `reshard_after_forward` are one setting. "
                    "Leave out the first."
                )
        else:
            self.reshard_after_forward = self._sharding(2)
        self.sharding_strategy = None
        self._read_switches("cpu_ram_efficient_loading")
        obsolete = [name for name, nothing in _OBSOLETE.items() if self._asks_for_more(name, nothing)]
        if obsolete:
            warn_user(
                f"{_listed(obsolete)} {'is' if len(obsolete) == 1 else 'are'} ignored: FSDP version 2 works without. "
                "`accel to-fsdp2` converts a config file.",
            )
        self.backward_prefetch = self.forward_prefetch = self.sync_module_states = self.use_orig_params = None

    def _complete_recomputation(self) -> None:
        self._read_switches("activation_checkpointing", "activation_checkpointing_offload")
        for name in ("selective_checkpointing", "activation_checkpointing_offload"):
            if getattr(self, name) and not self.activation_checkpointing:
                raise ConfigError(f"`{name}` has no effect without `activation_checkpointing`. Set both.")

    def _sharding(self, version: int) -> Any:
        """Return what is sharded, by either of the two names of the setting."""
        names = ("sharding_strategy", "reshard_after_forward")
        is_given = any(getattr(self, name) is not None for name in names)
        old, new = (
            None if is_given and value is None else self._given_or_set(name, value)
            for name in names
            for value in [getattr(self, name)]
        )
        return values.sharding_of(version, old, new, is_from_launcher=not is_given)

    def _given_or_set(self, name: str, value: Any) -> Any:
        """Return the word for a value, or for None what the variable says, None where it is unset."""
        if value is not None:
            return values.word_of(name, value)
        return environ.read(f"fsdp_{name}") if f"fsdp_{name}" in self._set else None

    def _or_set(self, name: str, *, setting: str | None = None) -> Any:
        """Return the value of a field, or for None what its variable says, None where it is unset."""
        value, variable = getattr(self, name), f"fsdp_{setting or name}"
        return environ.read(variable) if value is None and variable in self._set else value

    def _asks_for_more(self, name: str, nothing: Any) -> bool:
        """Tell whether a field, or the variable of one that is None, asks for more than ``nothing``."""
        asked = getattr(self, name)
        if f"fsdp_{name}" in SETTINGS:
            asked = self._given_or_set(name, asked)
        return asked is not None and asked != nothing

    def _read_switches(self, *names: str) -> None:
        for name in names:
            word = self._given_or_set(name, getattr(self, name))
            setattr(self, name, SETTINGS[f"fsdp_{name}"].default if word is None else word)

    def _complete_units(self) -> None:
        policy = self.auto_wrap_policy
        self._is_no_wrap = False
        if policy is None or isinstance(policy, str):
            word = self._given_or_set("auto_wrap_policy", policy)
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
        names = values.names_of(
            self._or_set("transformer_cls_names_to_wrap", setting="transformer_layer_cls_to_wrap")
        )
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
        if getattr(self.mixed_precision_policy, "keep_low_precision_grads", False):
            warn_user(
                "`keep_low_precision_grads` of `mixed_precision_policy` has no effect: gradients have the dtype of "
                "the parameters, which are stored in fp32. Leave it out."
            )

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


def settings_of_run(
    plugin: object, *, dtype: torch.dtype | None = None, has_autocast: bool = True
) -> tuple[Callable[[], FSDPConfig], Callable[[], StateDictType]]:
    """Return a function that returns the settings of a run, and one that returns how it is saved.

    Libraries change the first until they prepare a model, the second until they save it. The plugin shows the policy of
    mixed precision that the run follows.

    Args:
        plugin: That of the run; without one of FSDP, those of version 2 from the environment.
        dtype: See `FullyShardedDataParallelPlugin.config`.
        has_autocast: The same.
    """
    if not isinstance(plugin, FullyShardedDataParallelPlugin):
        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    read = functools.partial(plugin.config, dtype, has_autocast=has_autocast)
    plugin.show_policy(read().policy)
    return read, functools.partial(getattr, plugin, "state_dict_type")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
