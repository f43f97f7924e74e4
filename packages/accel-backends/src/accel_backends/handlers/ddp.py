"""How a model is wrapped for data parallelism: the arguments of `DistributedDataParallel`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from accel_backends.handlers import comm_hooks
from accel_state.enums import DDPCommunicationHookName, DDPCommunicationHookType
from accel_state.kwargs_handler import KwargsHandler

_HOOK_FIELDS = ("comm_hook", "comm_wrapper", "comm_state_option")


@dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Customises how a model is wrapped in `torch.nn.parallel.DistributedDataParallel`.

    The first seven fields are that class's arguments of the same name.

    Attributes:
        comm_hook: How gradients are packed for the wire; a member of `DDPCommunicationHookType` or its
            string.
        comm_wrapper: A cast (fp16 or bf16) put around ``comm_hook``.
        comm_state_option: Arguments of ``PowerSGDState`` for the PowerSGD hooks.

    Raises:
        ConfigError: If hook, wrapper and state options do not fit together.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType | DDPCommunicationHookName = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType | DDPCommunicationHookName = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.comm_hook = DDPCommunicationHookType(self.comm_hook)
        self.comm_wrapper = DDPCommunicationHookType(self.comm_wrapper)
        comm_hooks.check_combination(self.comm_hook, self.comm_wrapper, self.comm_state_option)

    def to_dict(self, ignore_keys: Collection[str] = _HOOK_FIELDS) -> dict[str, Any]:
        """Return the fields that are arguments of `DistributedDataParallel`, by name."""
        return {name: value for name, value in super().to_dict().items() if name not in ignore_keys}

    def register_comm_hook(self, model: DistributedDataParallel) -> None:
        """Make ``model`` send its gradients as this handler says; call once, before the first backward."""
        comm_hooks.register(
            model,
            hook=DDPCommunicationHookType(self.comm_hook),
            wrapper=DDPCommunicationHookType(self.comm_wrapper),
            state_options=self.comm_state_option,
        )
