"""`AcceleratorState`: the state of the process, and the settings of training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from torch.distributed.device_mesh import DeviceMesh

from accel_state.delegation import delegated
from accel_state.enums import DistributedType, PrecisionType
from accel_state.environment import read
from accel_state.errors import AccelError, ConfigError, StateError, StateNotBuiltError, UnknownNameError
from accel_state.gradient_state import SharedState
from accel_state.mesh_layout import MeshLayout
from accel_state.parallelism_config import ParallelismConfig
from accel_state.partial_state import PartialState, ProcessState
from accel_state.registry import Registry
from accel_state.runtime import (
    Runtime,
    current_runtime,
    get_or_create_runtime,
    has_runtime,
    reset_runtime,
    runtime_lock,
    training_attributes,
)


def _collect() -> dict[str, Any]:
    training = AcceleratorState._attributes
    return {**PartialState._shared_state, **training} if training else {}


class AcceleratorState(ProcessState):
    """The state of the process, and the settings of training: precision, engine, compilation, mesh.

    All instances show the same state; the first one builds it. Plugins are stored unchanged; a plugin
    with an attribute ``distributed_type`` sets the type of the run.

    Args:
        mixed_precision: ``no``, ``fp16``, ``bf16``, ``fp8`` or a precision that a package adds; None reads
            ``ACCELERATE_MIXED_PRECISION``.
        cpu: Use the CPU even if there is an accelerator.
        kwargs: Arguments of `torch.distributed.init_process_group`.

    Raises:
        ConfigError: If the request cannot be met.
        StateError: If the state exists already and contradicts the arguments.
    """

    dynamo_plugin: Any
    """How models are compiled."""
    fsdp_plugin: Any
    """How FSDP shards, None without it."""
    torch_tp_plugin: Any
    """How tensor parallelism is set up, None without it."""
    megatron_lm_plugin: Any
    """How Megatron-LM is set up, None without it."""
    strategy_plugin: Any
    """The plugin that selects a strategy of another package, None without it."""
    deepspeed_plugins: dict[str, Any] | None
    """All DeepSpeed plugins by name, None without DeepSpeed."""
    parallelism_config: ParallelismConfig | None
    """The sizes of the mesh's axes, None if none were given."""
    device_mesh: DeviceMesh | None
    """The mesh over all processes, None without `parallelism_config`."""
    layout: MeshLayout
    """How the processes are arranged."""
    _mixed_precision: str
    _distributed_type: DistributedType
    _selected_deepspeed_plugin: str | None

    _shared_state: ClassVar[SharedState] = SharedState(_collect)
    # Shared by every instance.
    _attributes: ClassVar[dict[str, Any]] = training_attributes()

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        _from_accelerator: bool = False,
        *,
        strategy_plugin: Any = None,
        **kwargs: Any,
    ) -> None:
        self.__dict__ = self._attributes
        if deepspeed_plugin is not None and not isinstance(deepspeed_plugin, dict):
            deepspeed_plugin = {"default": deepspeed_plugin}
        given = {
            "mixed_precision": None if mixed_precision is None else check_precision(mixed_precision),
            "dynamo_plugin": dynamo_plugin,
            "deepspeed_plugins": deepspeed_plugin or None,
            "fsdp_plugin": fsdp_plugin,
            "torch_tp_plugin": torch_tp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
            "strategy_plugin": strategy_plugin,
            "parallelism_config": parallelism_config,
        }
        with runtime_lock:
            runtime = None
            if cpu or kwargs or not self._attributes:
                runtime = get_or_create_runtime(cpu=cpu, options=kwargs)
            if runtime is None or self._attributes:
                self._check_agrees(given)
            else:
                self._build(runtime, given)

    def _build(self, runtime: Runtime, given: Mapping[str, Any]) -> None:
        distributed_type = _distributed_type(given) or runtime.distributed_type
        precision = given["mixed_precision"] or check_precision(read("mixed_precision"))
        deepspeed = list((given["deepspeed_plugins"] or {}).values())
        settled = [dp.settle_precision(precision) for dp in deepspeed if hasattr(dp, "settle_precision")]
        config = given["parallelism_config"]
        if config is None and read("use_parallelism_config"):
            config = ParallelismConfig()
        engines = [given["fsdp_plugin"], given["megatron_lm_plugin"], given["strategy_plugin"], *deepspeed]
        layout = _engine_layout(engines, runtime)
        if config is None and layout.num_data_ranks < layout.world_size:
            sizes: dict[str, Any] = {f"{axis}_size": size for axis, size in layout.sizes.items()}
            config = ParallelismConfig(**sizes)
        if config is not None:
            config.fit_to(runtime.topology.world_size, default=layout)
            layout = config.layout
        for engine in engines:
            if hasattr(engine, "settle_layout"):
                engine.settle_layout(layout)
        self._attributes.update(
            {name: value for name, value in given.items() if name.endswith(("_plugin", "_plugins"))},
            _mixed_precision=next(iter(settled), precision),
            _distributed_type=distributed_type,
            _selected_deepspeed_plugin=None,
            parallelism_config=config,
            device_mesh=None if config is None else config.get_device_mesh(runtime.device.type),
            layout=layout,
        )
        runtime.arrange(layout)
        if self.deepspeed_plugins:
            try:
                self._select(next(iter(self.deepspeed_plugins)))
            except AccelError:
                self._reset_state()
                raise

    def _check_agrees(self, given: Mapping[str, Any]) -> None:
        for name, requested in given.items():
            current = getattr(self, name)
            if requested and requested is not current and requested != current:
                raise StateError(
                    f"`{name}` requests `{requested}`, but the state was built with `{current}` already. Pass it the "
                    "first time that `Accelerator` is constructed, or call `AcceleratorState._reset_state()` in "
                    "between."
                )

    def __getattr__(self, name: str) -> Any:
        if name in AcceleratorState.__annotations__ and not self._attributes:
            raise StateNotBuiltError(
                f"`AcceleratorState` object has no attribute `{name}`: it was reset. This happens if "
                "`AcceleratorState._reset_state()` was called. Construct `Accelerator()` or `AcceleratorState()` again."
            )
        raise AttributeError(f"'AcceleratorState' object has no attribute '{name}'", name=name, obj=self)

    @staticmethod
    def is_initialized() -> bool:
        """Return whether an `Accelerator` or `AcceleratorState` has been built."""
        return bool(AcceleratorState._attributes)  # empty without a runtime

    @property
    def initialized(self) -> bool:
        """Whether an `Accelerator` or `AcceleratorState` has been built since the last reset."""
        return self.is_initialized()

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Reset the settings of training, and with ``reset_partial_state`` all of the state."""
        AcceleratorState._attributes.clear()
        if reset_partial_state:
            reset_runtime(keep_process_group=True)
        elif has_runtime():
            current_runtime().arrange(None)

    @property
    def mixed_precision(self) -> str:
        """The precision of the forward pass."""
        return self._mixed_precision

    distributed_type: DistributedType = delegated("_distributed_type")
    """The type of the distributed run: the engine's, else the device's."""

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by `fully_shard`, whichever version of FSDP the plugin's words are of."""
        strategy = getattr(self.fsdp_plugin, "strategy", None)
        return self.distributed_type == DistributedType.FSDP and strategy == "fsdp2"

    @property
    def deepspeed_plugin(self) -> Any:
        """The DeepSpeed plugin that is selected, None without DeepSpeed."""
        selected = self._selected_deepspeed_plugin
        return None if selected is None else self.get_deepspeed_plugin(selected)

    def get_deepspeed_plugin(self, name: str) -> Any:
        """Return the DeepSpeed plugin of that name.

        Raises:
            UnknownNameError: If there is none.
        """
        plugins = self.deepspeed_plugins or {}
        if name not in plugins:
            raise UnknownNameError.of("DeepSpeed plugin", name, plugins)
        return plugins[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Make the DeepSpeed plugin of that name active: `prepare` uses it from now on.

        Raises:
            ConfigError: If the name is missing.
            UnknownNameError: If there is no such plugin.
        """
        if name is None:
            known = ", ".join(sorted(self.deepspeed_plugins or {})) or "none"
            raise ConfigError(f"`name` is missing. Pass one of: {known}.")
        self._select(name)

    def _select(self, name: str) -> None:
        """Select one DeepSpeed plugin; plugins with `select` and `_unselect` are notified."""
        plugin = self.get_deepspeed_plugin(name)
        for other in (self.deepspeed_plugins or {}).values():
            if hasattr(other, "_unselect"):
                other._unselect()
        self._selected_deepspeed_plugin = name
        if hasattr(plugin, "select"):
            plugin.select(_from_accelerator_state=True)

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        yield f"Mixed precision type: {self.mixed_precision}"
        config = getattr(self.deepspeed_plugin, "deepspeed_config", None)
        if config is not None:
            yield f"ds_config: {config}"


def check_precision(name: str) -> str:
    """Return the precision's plain name.

    Raises:
        UnknownNameError: If neither accel nor an installed package knows it.
    """
    plain = str(name).lower()
    if plain not in PrecisionType.list():
        added = Registry[Any]("precision", "accel.precisions").names()
        if plain not in added:
            raise UnknownNameError.of("precision", plain, {*PrecisionType.list(), *added})
    return plain


def _distributed_type(given: Mapping[str, Any]) -> DistributedType | None:
    """Return the distributed type of the engine's plugin, None without one."""
    plugins = {"deepspeed_plugin": next(iter((given["deepspeed_plugins"] or {}).values()), None), **given}
    types = {name: getattr(plugin, "distributed_type", None) for name, plugin in plugins.items()}
    names = {name: kind for name, kind in types.items() if kind is not None}
    if len(names) > 1:
        raise ConfigError(
            f"Only one engine can train a model, but {' and '.join(f'`{name}`' for name in names)} are given. "
            "Pass one of them."
        )
    return next(iter(names.values()), None)


def _engine_layout(plugins: Iterable[Any], runtime: Runtime) -> MeshLayout:
    """Return the default layout of the first engine that has one, else the runtime's."""
    arranging = (plugin.default_layout for plugin in plugins if hasattr(plugin, "default_layout"))
    arrange = next(arranging, None)
    layout: MeshLayout = runtime.layout if arrange is None else arrange(runtime.topology)
    return layout
