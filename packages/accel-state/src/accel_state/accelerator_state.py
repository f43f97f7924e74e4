"""`AcceleratorState`: the process's state, and what was decided about training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from accel_state.accelerator_data import AcceleratorData
from accel_state.enums import DistributedType, PrecisionType
from accel_state.environment import read
from accel_state.errors import ConfigError, StateError, UnknownNameError
from accel_state.mesh_layout import MeshLayout
from accel_state.partial_state import PartialState
from accel_state.process_view import ProcessView
from accel_state.registry import Registry
from accel_state.runtime import Runtime, current_runtime, has_runtime, reset_runtime, runtime_lock
from accel_state.shared_state import SharedState

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from accel_state.parallelism_config import ParallelismConfig


def _collect() -> dict[str, Any]:
    if not has_runtime() or (data := current_runtime().accelerator) is None:
        return {}
    return {
        **PartialState._shared_state,
        "_mixed_precision": data.mixed_precision,
        "deepspeed_plugins": data.deepspeed_plugins or None,
        "device_mesh": data.device_mesh,
        "distributed_type": data.distributed_type,
        "dynamo_plugin": data.dynamo_plugin,
        "fsdp_plugin": data.fsdp_plugin,
        "megatron_lm_plugin": data.megatron_lm_plugin,
        "parallelism_config": data.parallelism_config,
        "torch_tp_plugin": data.torch_tp_plugin,
    }


class AcceleratorState(ProcessView):
    """The process's state, and what was decided about training: precision, engine, compilation, mesh.

    All instances show the same state; the first one builds it. Plugins are kept as they are; one with an
    attribute ``distributed_type`` says what kind of run this is.

    Args:
        mixed_precision: ``no``, ``fp16``, ``bf16``, ``fp8`` or a precision that a package adds; None reads
            ``ACCELERATE_MIXED_PRECISION``.
        cpu: Use the CPU even where there is an accelerator.
        kwargs: Wishes for `torch.distributed.init_process_group`.

    Raises:
        ConfigError: If what is asked for cannot be had.
        StateError: If the state exists already and contradicts the arguments.
    """

    _shared_state: ClassVar[SharedState] = SharedState(_collect)

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
        **kwargs: Any,
    ) -> None:
        given = {
            "mixed_precision": None if mixed_precision is None else check_precision(mixed_precision),
            "dynamo_plugin": dynamo_plugin,
            "deepspeed_plugins": _by_name(deepspeed_plugin),
            "fsdp_plugin": fsdp_plugin,
            "torch_tp_plugin": torch_tp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
            "parallelism_config": parallelism_config,
        }
        with runtime_lock():
            PartialState(cpu, **kwargs)
            runtime = current_runtime()
            if runtime.accelerator is None:
                runtime.accelerator = _build(runtime, given)
            else:
                _check_agrees(runtime.accelerator, given)

    @property
    def _data(self) -> AcceleratorData:
        data = current_runtime().accelerator
        if data is None:
            raise StateError(
                "The training state was reset. Construct `Accelerator()` or `AcceleratorState()` anew."
            )
        return data

    @staticmethod
    def is_initialized() -> bool:
        """Tell whether an `Accelerator` or `AcceleratorState` has been built."""
        return has_runtime() and current_runtime().accelerator is not None

    @property
    def initialized(self) -> bool:
        """Whether an `Accelerator` or `AcceleratorState` has been built since the last reset."""
        return self.is_initialized()

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Forget what was decided about training, and with ``reset_partial_state`` all of the state."""
        if reset_partial_state:
            reset_runtime(keep_process_group=True)
        elif has_runtime():
            current_runtime().accelerator = None

    @property
    def mixed_precision(self) -> str:
        """The number format of the forward pass."""
        return self._data.mixed_precision

    @property
    def distributed_type(self) -> DistributedType:
        """What kind of distributed run this is: the engine's word, else the device's."""
        return self._data.distributed_type

    @distributed_type.setter
    def distributed_type(self, distributed_type: DistributedType) -> None:
        self._data.distributed_type = distributed_type

    @property
    def dynamo_plugin(self) -> Any:
        """How models are compiled."""
        return self._data.dynamo_plugin

    @property
    def fsdp_plugin(self) -> Any:
        """How FSDP shards, None without it."""
        return self._data.fsdp_plugin

    @property
    def torch_tp_plugin(self) -> Any:
        """How tensor parallelism is set up, None without it."""
        return self._data.torch_tp_plugin

    @property
    def megatron_lm_plugin(self) -> Any:
        """How Megatron-LM is set up, None without it."""
        return self._data.megatron_lm_plugin

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """The sizes of the mesh's axes, None where nothing was said."""
        return self._data.parallelism_config

    @property
    def device_mesh(self) -> DeviceMesh | None:
        """The mesh over all processes, None where nobody has built one."""
        return self._data.device_mesh

    @device_mesh.setter
    def device_mesh(self, device_mesh: DeviceMesh | None) -> None:
        self._data.device_mesh = device_mesh

    @property
    def is_fsdp2(self) -> bool:
        """Whether models are sharded by FSDP of the second version."""
        plugin = self._data.fsdp_plugin
        return self.distributed_type == DistributedType.FSDP and getattr(plugin, "fsdp_version", None) == 2

    @property
    def deepspeed_plugins(self) -> dict[str, Any] | None:
        """All DeepSpeed plugins by name, None without DeepSpeed."""
        return self._data.deepspeed_plugins or None

    @property
    def deepspeed_plugin(self) -> Any:
        """The DeepSpeed plugin that is selected, None without DeepSpeed."""
        data = self._data
        return (
            None
            if data.active_deepspeed_plugin is None
            else data.deepspeed_plugins[data.active_deepspeed_plugin]
        )

    def get_deepspeed_plugin(self, name: str) -> Any:
        """Return the DeepSpeed plugin of that name."""
        plugins = self._data.deepspeed_plugins
        if name not in plugins:
            raise UnknownNameError.of("DeepSpeed plugin", name, plugins)
        return plugins[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Make the DeepSpeed plugin of that name the one that `prepare` uses from now on."""
        if name is None:
            raise ConfigError(
                "`name` is missing. Give one of: "
                f"{', '.join(sorted(self._data.deepspeed_plugins)) or 'none known'}."
            )
        self.get_deepspeed_plugin(name)
        _select(self._data, name)

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        yield f"Mixed precision type: {self.mixed_precision}"


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


def _build(runtime: Runtime, given: Mapping[str, Any]) -> AcceleratorData:
    plugins = {
        "deepspeed_plugin": next(iter(given["deepspeed_plugins"].values()), None),
        "fsdp_plugin": given["fsdp_plugin"],
        "megatron_lm_plugin": given["megatron_lm_plugin"],
    }
    words = {
        name: plugin.distributed_type
        for name, plugin in plugins.items()
        if getattr(plugin, "distributed_type", None) is not None
    }
    if len(words) > 1:
        raise ConfigError(
            f"Only one engine can train a model, but {' and '.join(f'`{name}`' for name in words)} are given."
        )
    config, world_size = _parallelism(given["parallelism_config"]), runtime.topology.world_size
    if config is not None:
        config.fit_to(world_size)
    data = AcceleratorData(
        **{
            **given,
            "mixed_precision": given["mixed_precision"] or check_precision(read("mixed_precision")),
            "parallelism_config": config,
        },
        distributed_type=next(iter(words.values()), runtime.distributed_type),
        layout=MeshLayout.of_replicas(world_size) if config is None else config.layout,
        device_mesh=None if config is None else config.get_device_mesh(runtime.device.type),
    )
    if data.deepspeed_plugins:
        _select(data, next(iter(data.deepspeed_plugins)))
    return data


def _check_agrees(data: AcceleratorData, given: Mapping[str, Any]) -> None:
    for name, asked in given.items():
        current = getattr(data, name)
        if asked and asked is not current and asked != current:
            raise StateError(
                f"`{name}` asks for `{asked}`, but the state was built with `{current}` already. Pass it "
                "the first time "
                "that `Accelerator` is constructed, or call `AcceleratorState._reset_state()` in between."
            )


def _parallelism(given: ParallelismConfig | None) -> ParallelismConfig | None:
    """Return what was given, else what the environment asks for, if it does."""
    if given is not None or not read("use_parallelism_config"):
        return given
    from accel_state.parallelism_config import ParallelismConfig

    return ParallelismConfig()


def _by_name(plugins: Any) -> dict[str, Any]:
    if plugins is None:
        return {}
    return dict(plugins) if isinstance(plugins, dict) else {"default": plugins}


def _select(data: AcceleratorData, name: str) -> None:
    """Mark one DeepSpeed plugin as selected; a plugin that wants to know has `select` and `_unselect`."""
    for other in data.deepspeed_plugins.values():
        if hasattr(other, "_unselect"):
            other._unselect()
    data.active_deepspeed_plugin = name
    plugin = data.deepspeed_plugins[name]
    if hasattr(plugin, "select"):
        plugin.select(_from_accelerator_state=True)
