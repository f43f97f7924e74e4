"""The one object per process behind `PartialState` and `AcceleratorState`, and how it is built."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from accel_state import process_group
from accel_state.availability import check_os_kernel, why_not
from accel_state.devices.backend import (
    DeviceBackend,
    current_device_backend,
    device_backend,
    require_device_backend,
)
from accel_state.enums import DistributedType
from accel_state.environment import parse_flag_from_env, read, snapshot
from accel_state.environment.settings import IN_PLACE_OF_IPEX
from accel_state.errors import ConfigError, NotAvailableError, StateError, StateNotBuiltError
from accel_state.gradient_state import GradientState
from accel_state.group_exit import end_owned_group
from accel_state.launched_by import detect_topology
from accel_state.mesh_layout import MeshLayout
from accel_state.nodes import agree_on_nodes
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user


@dataclass(slots=True)
class Runtime:
    """The rank, device and process group of this process. Built once, by the first `PartialState` or `Accelerator`.

    Attributes:
        backend: The process group's, None in a single process.
        distributed_type: Of the devices only; the `AcceleratorState` has the engine's.
        layout: The layout of the ranks: the `ParallelismConfig`'s, by default a replica of the model on every rank.
        has_ended: Whether the process group was destroyed on request; the next `Accelerator` builds another runtime.
    """

    topology: Topology
    device: torch.device
    device_backend: DeviceBackend
    backend: str | None
    distributed_type: DistributedType
    is_cpu_forced: bool
    debug: bool
    fork_launched: bool
    group_request: Mapping[str, Any] = field(default_factory=dict)
    has_ended: bool = False
    layout: MeshLayout = field(init=False)
    _arranged: MeshLayout = field(init=False)

    def __post_init__(self) -> None:
        self.arrange(None)

    def arrange(self, layout: MeshLayout | None) -> None:
        """Set the layout of the ranks; None: a replica of the model on every rank."""
        self.layout = self._arranged = layout or MeshLayout.of_replicas(self.topology.world_size)

    def set_rank(self, field: str, value: int) -> None:
        """Set one field of the topology, as scripts do one by one: it need not agree with the other fields yet."""
        self.topology = copy(self.topology)
        object.__setattr__(self.topology, field, value)
        world_size = self.topology.world_size
        fits = self._arranged.world_size == world_size
        self.layout = self._arranged if fits else MeshLayout.of_replicas(world_size)

    def wait_for_everyone(self) -> None:
        """Block until every rank has called it; return at once in a single process."""
        if self.topology.world_size > 1:
            self.device_backend.barrier(self.device)

    def await_arrival(self, operation: str) -> None:
        """In debug mode, block until all ranks have reached ``operation``; otherwise return at once."""
        if self.debug and self.topology.world_size > 1:
            from accel_state.arrival import await_arrival

            group, topology = torch.distributed.group.WORLD, self.topology
            if group is not None:  # a run on XLA may have none
                await_arrival(group.get_group_store(), topology.rank, topology.world_size, operation)

    def ensure_group(self) -> None:
        """Create a process group for a process that runs alone; an existing group stays.

        Raises:
            StateError: If the group of several processes was destroyed.
        """
        if torch.distributed.is_initialized():
            return
        if self.topology.world_size > 1:
            raise StateError(
                f"The process group of the {self.topology.world_size} processes was destroyed, as by `end_training`. "
                "Construct another `Accelerator`."
            )
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        backend = self.device_backend.collective_backend or "gloo"
        process_group.set_up_group(self.topology, backend=backend, options={"store": store})


runtime_lock = threading.RLock()
"""Held while the runtime is looked up and built."""


class _Current:
    runtime: Runtime | None = None
    training: ClassVar[dict[str, Any]] = {}


def has_runtime() -> bool:
    """Whether the runtime has been built."""
    return _Current.runtime is not None


def current_runtime() -> Runtime:
    """Return the runtime of this process.

    Raises:
        StateNotBuiltError: If neither a `PartialState` nor an `Accelerator` has been built yet.
    """
    if _Current.runtime is None:
        raise StateNotBuiltError(
            "`PartialState` object has no attribute values: the state of this process has not been built. This "
            "happens if `PartialState._reset_state()` was called. Construct `Accelerator()` or `PartialState()` first."
        )
    return _Current.runtime


def training_attributes() -> dict[str, Any]:
    """Return the attributes of all `AcceleratorState` instances, empty while there is none; only they write them."""
    return _Current.training


def reset_runtime(*, keep_process_group: bool = False) -> None:
    """Reset the state of this process, so that the next `PartialState` builds a new one.

    Args:
        keep_process_group: Keep the process group, for the next `PartialState` to adopt.
            Otherwise the group is destroyed if accel set it up; a user-provided group is never touched.
    """
    _Current.runtime = None
    _Current.training.clear()
    GradientState._reset_state()
    if not keep_process_group:
        end_owned_group()


def get_or_create_runtime(*, cpu: bool, options: Mapping[str, Any]) -> Runtime:
    """Return the runtime of this process, building it on the first call.

    Raises:
        StateError: If it exists already and contradicts the arguments.
    """
    if options:
        process_group.check_options(options)
    with runtime_lock:
        if _Current.runtime is None:
            _Current.runtime = _build(cpu=cpu, options=options)
        else:
            _check_agrees(_Current.runtime, cpu=cpu, options=options)
        return _Current.runtime


def _build(*, cpu: bool, options: Mapping[str, Any]) -> Runtime:
    if read("enable_rich"):
        _install_rich_tracebacks()
    is_cpu_forced = cpu or read("use_cpu")
    device_backend, chosen = _choose_device(is_cpu_forced)
    topology = device_backend.refine_topology(_topology(options))
    backend: str | None = None
    if process_group.is_group_up():
        topology, backend = process_group.adopt_group(
            topology, device_type=device_backend.name, options=options
        )
    device = device_backend.place(topology) if chosen is None else _check_chosen(chosen, topology)
    if device.type != "cpu":
        _set_device(device_backend, device)
    if backend is None and topology.world_size > 1:
        _set_up_group(topology, device_backend, device, options)
        backend = process_group.backend_of_group(device.type)
    if backend is not None and topology.is_node_rank_assumed:
        topology = agree_on_nodes(topology)
    if read("use_ipex"):
        warn_user(f"`ACCELERATE_USE_IPEX` has no effect any more: {IN_PLACE_OF_IPEX}. Unset it.")
    if read("cpu_affinity"):
        from accel_state.affinity import set_numa_affinity

        set_numa_affinity(device.index if ":" in str(device) else topology.local_rank)
    return Runtime(
        topology=topology,
        device=device,
        device_backend=device_backend,
        backend=backend,
        distributed_type=device_backend.distributed_type if topology.world_size > 1 else DistributedType.NO,
        is_cpu_forced=is_cpu_forced,
        debug=read("debug_mode"),
        fork_launched=parse_flag_from_env("FORK_LAUNCHED"),
        group_request=dict(options),
    )


def _install_rich_tracebacks() -> None:
    reason = why_not("rich")
    if reason is not None:
        warn_user(f"`ACCELERATE_ENABLE_RICH` has no effect: {reason}")
        return
    from rich.traceback import install

    install()


def _topology(options: Mapping[str, Any]) -> Topology:
    """Return the environment's topology, or one with the user-provided rank and size."""
    if not {"rank", "world_size"} & set(options):
        return detect_topology(snapshot())
    rank, world_size = options.get("rank"), options.get("world_size")
    if rank is None or world_size is None:
        raise ConfigError("`rank` and `world_size` belong together. Pass both, or neither.")
    return replace(Topology(), rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)


def _choose_device(is_cpu_forced: bool) -> tuple[DeviceBackend, torch.device | None]:
    """Return the type of device, and the device if ``ACCELERATE_TORCH_DEVICE`` has its number."""
    wanted: str | None = None if is_cpu_forced else read("torch_device")
    if wanted is None:
        return current_device_backend(cpu=is_cpu_forced), None
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise ConfigError(
            f"`ACCELERATE_TORCH_DEVICE` is `{wanted}`, which torch does not know: {error}. "
            "Set a device of torch such as `cuda` or `cpu`."
        ) from None
    if ":" in wanted:
        return device_backend(device.type), device
    return require_device_backend(device.type), None


def _check_chosen(device: torch.device, topology: Topology) -> torch.device:
    if topology.local_world_size > 1 and device.type != "cpu":
        raise ConfigError(
            f"`ACCELERATE_TORCH_DEVICE` names the one device `{device}` for {topology.local_world_size} processes. "
            f"Leave the number out (`{device.type}`), so that each gets a separate one."
        )
    return device


def _set_device(backend: DeviceBackend, device: torch.device) -> None:
    try:
        backend.set_device(device)
    except (AssertionError, AttributeError, RuntimeError, ValueError, ImportError) as error:
        raise NotAvailableError(
            f"The device `{device}` cannot be used here: {error}. Check its driver, or "
            "unset `ACCELERATE_TORCH_DEVICE`."
        ) from error


def _set_up_group(
    topology: Topology, device_backend: DeviceBackend, device: torch.device, options: Mapping[str, Any]
) -> None:
    backend = options.get("backend") or device_backend.collective_backend
    if backend is None:
        raise ConfigError(
            f"{topology.world_size} processes were requested, but processes on `{device_backend.name}` cannot "
            "communicate. Start one process, or pass `cpu=True` (`--cpu`)."
        )
    if topology.local_rank == 0:
        check_os_kernel()
    process_group.set_up_group(
        topology,
        backend=backend,
        options={**device_backend.process_group_options(), **options},
        claim=device_backend.claim(device, topology) if "nccl" in backend else "",
    )


def _check_agrees(runtime: Runtime, *, cpu: bool, options: Mapping[str, Any]) -> None:
    if cpu and runtime.device.type != "cpu":
        raise StateError(
            f"`cpu=True` contradicts the state of this process, which runs on `{runtime.device}` already. "
            "Pass it the first time that `Accelerator` or `PartialState` is constructed."
        )
    if runtime.backend is None:
        return
    for name, value in options.items():
        given = runtime.backend if name == "backend" else runtime.group_request.get(name)
        if value != given and not (name == "backend" and value and process_group.is_group_on(value, given)):
            raise StateError(
                f"`{name}` requests `{value}`, but the process group was set up with `{given}` already. "
                "Pass it the first time that `Accelerator` or `PartialState` is constructed."
            )
