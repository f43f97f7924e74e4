"""The prepared optimizer: it steps when gradients are complete, and reports skipped steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from accel_backends.precisions.loss_scaler import step_scaled
from accel_ops.nested.move import send_to_device
from accel_state.gradient_state import current_gradient

if TYPE_CHECKING:  # so that a prepared `AdamW` may be assigned where an `AdamW` is declared
    _Wrapped: TypeAlias = Any
else:
    _Wrapped = object


class AcceleratedOptimizer(torch.optim.Optimizer, _Wrapped):  # type: ignore[misc]
    """Wraps an optimizer so that `step` and `zero_grad` do nothing while gradients are being accumulated.

    Args:
        optimizer: The optimizer to wrap. It has the parameters and the state, and gets hooks that are registered here.
        device_placement: Whether the optimizer's state is moved to the devices of its parameters.
        scaler: The gradient scaler of fp16 training, None if gradients are not scaled.

    Other attributes are those of the wrapped optimizer.
    """

    engine_optimizer: torch.optim.Optimizer | None = None
    """The optimizer that steps the parameters inside an engine; None if it is the wrapped one."""
    user_optimizer: torch.optim.Optimizer | None = None
    """The optimizer that was prepared, if an engine steps another in its place."""
    _check: Callable[[torch.optim.Optimizer], None] | None = None
    _context: Callable[[torch.optim.Optimizer], AbstractContextManager[Any]] = nullcontext

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        device_placement: bool = True,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        # Not Optimizer.__init__, which would set up parameter groups of its own.
        self.optimizer = optimizer
        self.scaler = scaler
        self.device_placement = device_placement
        self._has_stepped_in_backward = hasattr(optimizer, "fused_backward")  # as LOMO does
        self._is_overflow: bool | torch.Tensor = False  # scripts set it by this name
        if device_placement:
            place_optimizer_state(optimizer)
        self.gradient_state = current_gradient()

    def check_before_step(self, check: Callable[[torch.optim.Optimizer], None]) -> None:
        """Call ``check`` with the wrapped optimizer before each `step`; copies of this object do not."""
        self._check = check

    def step_within(self, context: Callable[[torch.optim.Optimizer], AbstractContextManager[Any]]) -> None:
        """Run each `step` in ``context`` of the wrapped optimizer."""
        self._context = context

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step the wrapped optimizer if this micro-batch completes the gradients; else do nothing.

        Returns:
            The result of the wrapped optimizer: the loss if ``closure`` computes one. None with a scaler.

        Raises:
            StateError: If ``closure`` is given while the loss is scaled.
        """
        if not self.gradient_state.sync_gradients or self._has_stepped_in_backward:
            return None
        if self._check is not None:
            self._check(self.optimizer)
        result = None
        with self._context(self.optimizer):
            if self.scaler is not None:
                self._is_overflow = step_scaled(self.scaler, self.optimizer, closure)
            else:
                result = self.optimizer.step() if closure is None else self.optimizer.step(closure)
        torch.clear_autocast_cache()  # an autocast around several steps has casts of the old weights
        return result

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients if this micro-batch completed them; else do nothing.

        Args:
            set_to_none: Passed to the wrapped optimizer; None leaves it to that optimizer's default.
        """
        if not self.gradient_state.sync_gradients:
            return
        if set_to_none is None:
            self.optimizer.zero_grad()
        else:
            self.optimizer.zero_grad(set_to_none=set_to_none)

    @property
    def step_was_skipped(self) -> bool:
        """Whether the last complete step was skipped because gradients overflowed.

        Waits for the device if a fused optimizer decided that there.
        """
        self._is_overflow = bool(self._is_overflow)
        return self._is_overflow

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the wrapped optimizer."""
        return self.optimizer.param_groups

    @param_groups.setter
    def param_groups(self, param_groups: list[dict[str, Any]]) -> None:
        self.optimizer.param_groups = param_groups

    @property
    def state(self) -> Any:
        """The state of the wrapped optimizer."""
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.optimizer.state = state

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the wrapped optimizer."""
        return self.optimizer.defaults

    @defaults.setter
    def defaults(self, defaults: dict[str, Any]) -> None:
        self.optimizer.defaults = defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters to the wrapped optimizer."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of the wrapped optimizer."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a state dict into the wrapped optimizer, and move its tensors to the devices of the parameters."""
        self.optimizer.load_state_dict(dict(state_dict))
        if self.device_placement:
            place_optimizer_state(self.optimizer)

    def train(self) -> None:
        """Switch the optimizer to training mode if it has one, as schedule-free optimizers do."""
        self._switch_mode("train")

    def eval(self) -> None:
        """Switch the optimizer to evaluation mode if it has one, as schedule-free optimizers do."""
        self._switch_mode("eval")

    def _switch_mode(self, mode: str) -> None:
        switch = getattr(self.optimizer, mode, None)
        if callable(switch):
            switch()

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":  # missing while this object is being unpickled
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def __getstate__(self) -> dict[str, Any]:
        # The gradient state belongs to the process, and the check to the models, not to the optimizer.
        return {
            name: value for name, value in self.__dict__.items() if name not in ("gradient_state", "_check")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.gradient_state = current_gradient()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r})"


def move_to_device(state: Any, device: torch.device | str) -> Any:
    """Return nested lists, tuples and mappings with all tensors on ``device`` and the rest unchanged."""
    return send_to_device(state, device)


def in_memory(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state dict for ``optimizer`` with its tensors copied out of the files that they may be mapped from.

    An optimizer must not depend on a file that is removed or changed while it trains. Tensors go to the memory that
    the optimizer has for them, else to the devices of their parameters, one at a time. `DTensor`s are unchanged: they
    were read into their own memory.
    """
    from torch.distributed.tensor import DTensor  # takes long, and only loading needs it

    numbers = [number for group in state["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    parameter_of = dict(zip(numbers, parameters, strict=False))

    def copied(name: str, value: Any, parameter: torch.Tensor | None) -> Any:
        if isinstance(value, DTensor):
            return value
        if type(value) is not torch.Tensor:
            from accel_checkpoint.tensors import copy_of, map_tensors  # which few optimizers need

            return map_tensors(value, copy_of)
        own = None if parameter is None else optimizer.state.get(parameter, {}).get(name)
        if type(own) is torch.Tensor and (own.shape, own.dtype) == (value.shape, value.dtype):
            return own.copy_(value)
        # torch itself decides on which device a step counter is.
        if parameter is None or name == "step" or parameter.device == value.device:
            return value.clone()
        return value.to(parameter.device)

    with torch.no_grad():
        tensors = {
            number: {name: copied(name, value, parameter_of.get(number)) for name, value in values.items()}
            for number, values in state["state"].items()
        }
    return {**state, "state": tensors, "param_groups": deepcopy(state["param_groups"])}


def place_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Move the state of each parameter to that parameter's device, in place and without changing any type.

    Step counters stay where they are, on the CPU on purpose, except those of fused and capturable optimizers, which
    count on the device.
    """
    for group in optimizer.param_groups:
        counts_on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name, value in state.items():
                if name != "step" or (counts_on_device and isinstance(value, torch.Tensor)):
                    state[name] = send_to_device(value, parameter.device)
