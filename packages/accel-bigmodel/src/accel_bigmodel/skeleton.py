"""Build models on the meta device, or another one: parameters are moved when they are registered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from accel_state.environment.environ import read

# Factory functions that only need a size. Not `arange`, `linspace` and `tensor`: constructors of models read their
# values, which would not exist on the meta device (tests/test_skeleton.py).
_FILLERS = frozenset({torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn})


@contextmanager
def init_empty_weights(include_buffers: bool | None = None) -> Iterator[None]:
    """Build models in this context with their parameters on the meta device, without memory.

        with init_empty_weights():
            model = nn.Sequential(*[nn.Linear(10_000, 10_000) for _ in range(1000)])  # takes no memory

    Args:
        include_buffers: Whether buffers are empty too, and tensors from factory functions that only need a size
            (``torch.zeros``, ``torch.randn`` …). Values that are not in a checkpoint (buffers that are not
            persistent, plain attributes) are then lost. ``None`` reads ``ACCELERATE_INIT_INCLUDE_BUFFERS``,
            false by default.

    Only modules that this thread builds are affected. Contexts can be nested; the innermost applies.
    """
    with init_on_device(torch.device("meta"), include_buffers=include_buffers):
        yield


@contextmanager
def init_on_device(device: torch.device | str | int, include_buffers: bool | None = None) -> Iterator[None]:
    """Build models in this context with their parameters on ``device``.

        with init_on_device("cuda"):
            model = nn.Linear(100, 100)

    Tied parameters stay tied, and keep their class and attributes. A parameter is created on the device that
    ``__init__`` chooses, and moves when it is registered, before ``reset_parameters`` fills it.

    Args:
        device: Device of the parameters.
        include_buffers: Whether buffers are on it too, and tensors that ``__init__`` makes with torch's factory
            functions (on the meta device only with functions that only need a size). ``None`` reads
            ``ACCELERATE_INIT_INCLUDE_BUFFERS``, false by default.

    Only modules that this thread builds are affected. Contexts can be nested; the innermost applies.
    """
    target = torch.device(device)
    if include_buffers is None:
        include_buffers = bool(read("init_include_buffers"))
    placement = _Placement(target, include_buffers=include_buffers)
    with ExitStack() as stack:
        _current.stack.append(placement)
        stack.callback(_current.stack.pop)
        # torch annotates these hooks as returning None, but documents that their result is registered.
        on_parameter: Any = _move_parameter
        on_buffer: Any = _move_buffer
        stack.enter_context(register_module_parameter_registration_hook(on_parameter))
        stack.enter_context(register_module_buffer_registration_hook(on_buffer))
        if include_buffers:
            stack.enter_context(_FillersOn(target) if target.type == "meta" else target)
        yield


class _Placement:
    """State of one `init_on_device` context."""

    def __init__(self, device: torch.device, *, include_buffers: bool) -> None:
        self.device = device
        self.include_buffers = include_buffers
        # Weak, so that a moved tensor is freed at once. A tied tensor is registered again while it is still alive.
        self._moved = WeakTensorKeyDictionary()

    def place(self, tensor: torch.Tensor, move: Callable[[Any, torch.device], torch.Tensor]) -> torch.Tensor:
        """Return ``tensor`` on this context's device, always the same object for the same tensor."""
        if _is_on(tensor, self.device):
            return tensor
        if tensor not in self._moved:
            self._moved[tensor] = move(tensor, self.device)
        moved: torch.Tensor = self._moved[tensor]
        return moved


class _Stack(threading.local):
    """The contexts that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Placement] = []


_current = _Stack()


def _move_parameter(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
    if parameter is None or not _current.stack:
        return None
    placed = _current.stack[-1].place(parameter, _parameter_on)
    assert isinstance(placed, nn.Parameter)
    return placed


def _move_buffer(module: nn.Module, name: str, buffer: torch.Tensor | None) -> torch.Tensor | None:
    if buffer is None or not _current.stack or not _current.stack[-1].include_buffers:
        return None
    return _current.stack[-1].place(buffer, torch.Tensor.to)


def _parameter_on(parameter: nn.Parameter, device: torch.device) -> nn.Parameter:
    if isinstance(parameter, UninitializedParameter):
        lazy: Any = type(parameter)
        moved = lazy(requires_grad=parameter.requires_grad, device=device)  # has no values to detach
    else:
        moved = type(parameter)(parameter.detach().to(device), requires_grad=parameter.requires_grad)
    moved.__dict__.update(parameter.__dict__)
    assert isinstance(moved, nn.Parameter)
    return moved


def _is_on(tensor: torch.Tensor, device: torch.device) -> bool:
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


class _FillersOn(TorchFunctionMode):
    """Creates results of `_FILLERS` on a device if the caller names none."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        arguments = dict(kwargs or {})
        if func in _FILLERS and arguments.get("device") is None:
            arguments["device"] = self._device
        return func(*args, **arguments)
