"""Keep models on the CPU until they are called."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.base import ModelHook, remove_hook_from_module
from accel_bigmodel.planning.device_maps import default_device
from accel_ops.memory import clear_device_cache
from accel_ops.nested.move import send_to_device


class CpuOffload(ModelHook):
    """Keeps a model on the CPU until it is called, then moves it to its device and leaves it there.

    Args:
        execution_device: The device that runs it. Default: this process's accelerator, else the CPU.
        prev_module_hook: The hook of the previous model in a pipeline, which is offloaded first.
    """

    def __init__(
        self,
        execution_device: str | int | torch.device | None = None,
        prev_module_hook: UserCpuOffloadHook | None = None,
    ) -> None:
        self.prev_module_hook = prev_module_hook
        self.execution_device = (
            default_device() if execution_device is None else torch.device(execution_device)
        )

    def init_hook(self, module: nn.Module) -> nn.Module:
        return module.to("cpu")

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.prev_module_hook is not None and isinstance(self.prev_module_hook, UserCpuOffloadHook):
            previous = self.prev_module_hook
            first = next(previous.model.parameters(), None)
            if first is None or first.device.type != "cpu":
                previous.offload()
        module.to(self.execution_device)
        return send_to_device(args, self.execution_device), send_to_device(kwargs, self.execution_device)


class UserCpuOffloadHook:
    """The hook that `cpu_offload_with_hook` returns, to offload the model explicitly."""

    def __init__(self, model: nn.Module, hook: ModelHook) -> None:
        self.model = model
        self.hook = hook

    def offload(self) -> None:
        """Move the model to the CPU and free its memory on the accelerator."""
        self.hook.init_hook(self.model)
        clear_device_cache()

    def remove(self) -> None:
        """Remove the hook; the model stays on its device."""
        remove_hook_from_module(self.model)
