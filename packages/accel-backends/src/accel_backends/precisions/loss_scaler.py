"""Loss scaling for fp16, right for several optimizers that share one scaler."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.amp.grad_scaler import OptState

from accel_state.enums import DistributedType
from accel_state.errors import StateError

Outputs = torch.Tensor | Iterable[torch.Tensor]
_HALF_PARAMETERS = (
    "The model has fp16 parameters, whose gradients cannot be unscaled. Load it in fp32, and do not cast it after "
    "`prepare`: `mixed_precision=fp16` computes in fp16 and keeps the parameters in fp32."
)


class LossScaler(torch.amp.GradScaler):
    """A `torch.amp.GradScaler` that may be updated after each optimizer's step.

    torch wants `update` once per iteration, after all optimizers have stepped; nobody can tell an optimizer
    wrapper that it is the last. So `update` is noted and takes place when the new scale is first needed: at
    the next loss, or at the next step of an optimizer that has stepped already. Until then the gradients of the
    other optimizers are unscaled with the scale that their loss was multiplied with. Looking at the scaler, which
    one rank may do and another not, shows the updated scale and changes nothing.
    """

    _update_is_due = False
    _is_shared = False
    _has_stepped: bool | None = None
    """Whether the last step was taken; None if a fused optimizer decided that on the device."""

    def share_overflows(self) -> None:
        """Let all ranks skip a step where the gradients of one overflow.

        For gradients of which each rank has a part. Then every rank must unscale and step the same optimizers in the
        same order, also those of which it has no gradient.
        """
        self._is_shared = True

    @property
    def is_shared(self) -> bool:
        """Whether all ranks skip steps together."""
        return self._is_shared

    def scale(self, outputs: Any) -> Any:
        """Return ``outputs`` times the scale that the steps so far have led to."""
        self._update_if_due()
        return super().scale(outputs)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide this optimizer's gradients by the scale."""
        self._begin_next_step_of(optimizer)
        super().unscale_(optimizer)
        if self._is_shared and self.is_enabled():
            self._share(self._found_inf_per_device(optimizer))

    def _unscale_grads_(
        self,
        optimizer: torch.optim.Optimizer,
        inv_scale: torch.Tensor,
        found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        """Unscale what this rank holds of each gradient; torch's own takes no `DTensor` beside a plain tensor."""
        if not self._is_shared:
            try:
                return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
            except ValueError as error:
                raise StateError(_HALF_PARAMETERS) from error
        from torch.distributed.tensor import DTensor  # takes long, and only sharded runs need it

        of_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in _gradients(optimizer):
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            if local.dtype is torch.float16 and not allow_fp16:
                raise StateError(_HALF_PARAMETERS)
            of_kind.setdefault((local.device, local.dtype), []).append(local)
        overflows: dict[torch.device, torch.Tensor] = {}
        for (device, _), gradients in of_kind.items():
            found = overflows.setdefault(device, found_inf.to(device, copy=True))
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, inv_scale.to(device))
        return overflows

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step ``optimizer`` unless its gradients overflowed."""
        self._begin_next_step_of(optimizer)
        self._has_stepped = None
        if self._is_shared and _stage(self, optimizer) is OptState.READY:
            # A fused optimizer would look for overflows by itself, on its own rank.
            self.unscale_(optimizer)
        return super().step(optimizer, *args, **kwargs)

    def _maybe_opt_step(
        self, optimizer: torch.optim.Optimizer, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
    ) -> float | None:
        # The host waits for the device, as in torch: an optimizer that is not fused steps or does not.
        self._has_stepped = not any(
            found.item() for found in optimizer_state["found_inf_per_device"].values()
        )
        return optimizer.step(*args, **kwargs) if self._has_stepped else None

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Note that the scale is to be adapted; a ``new_scale`` takes effect at once."""
        if new_scale is None:
            self._update_is_due = self.is_enabled()
            return
        self._update_is_due = False
        super().update(new_scale)

    def get_scale(self) -> float:
        """Return the scale that the next loss will be multiplied with."""
        with self._as_updated():
            return super().get_scale()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the scaler, with all steps so far taken into account."""
        with self._as_updated():
            return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take back the state of the scaler; steps before it no longer count."""
        self._update_is_due = False
        super().load_state_dict(state_dict)

    def __getstate__(self) -> dict[str, Any]:
        with self._as_updated():
            return super().__getstate__()

    @contextmanager
    def _as_updated(self) -> Iterator[None]:
        """Be, for the block, the scaler that the update which is due will make of this one."""
        if not self._update_is_due:
            yield
            return
        assert self._scale is not None
        assert self._growth_tracker is not None
        before = self._scale, self._growth_tracker, self._per_optimizer_states
        self._scale, self._growth_tracker = self._scale.clone(), self._growth_tracker.clone()
        self._per_optimizer_states = copy.deepcopy(
            self._per_optimizer_states
        )  # an update adds them up in place
        self._update_if_due()
        try:
            yield
        finally:
            self._scale, self._growth_tracker, self._per_optimizer_states = before
            self._update_is_due = True

    def _update_if_due(self) -> None:
        if self._update_is_due:
            self._update_is_due = False
            super().update()

    def _share(self, overflows: dict[Any, torch.Tensor]) -> None:
        """Let ``overflows``, by device and empty without gradients, say what is so on any rank."""
        assert self._scale is not None
        device = self._scale.device
        found = torch.zeros((), device=device)
        for own in overflows.values():
            found = torch.maximum(found, own.to(device))
        dist.all_reduce(found, dist.ReduceOp.MAX)
        for own in overflows.values() or [overflows.setdefault(device, found)]:
            own.copy_(found)

    def _begin_next_step_of(self, optimizer: torch.optim.Optimizer) -> None:
        if self._update_is_due and _stage(self, optimizer) is OptState.STEPPED:
            self._update_if_due()


def unscale_once(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> None:
    """Unscale the gradients of ``optimizer`` unless that was done since its last step."""
    if not scaler.is_enabled() or not _may_have_gradients(scaler, optimizer):
        return
    if _stage(scaler, optimizer) is not OptState.UNSCALED:
        scaler.unscale_(optimizer)


def step_scaled(
    scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer, closure: Callable[[], Any] | None = None
) -> bool | torch.Tensor:
    """Step ``optimizer`` under ``scaler``, update the scale, and return whether the step was skipped.

    A fused optimizer decides that on the device: it is a tensor there then, not 0 if the step was skipped.

    Raises:
        StateError: If a closure is given: the gradients that it computes would escape the scaling.
    """
    if not scaler.is_enabled():
        optimizer.step(closure)
        return False
    if closure is not None:
        raise StateError(
            "An optimizer that needs a closure cannot step under the loss scaling of `mixed_precision=fp16`. "
            "Use `mixed_precision=bf16` or `no`."
        )
    if not _may_have_gradients(scaler, optimizer):
        # Nothing to check for overflow: torch's scaler would raise where plain torch does nothing.
        optimizer.step()
        return False
    scaler.step(optimizer)
    has_stepped = scaler._has_stepped if isinstance(scaler, LossScaler) else None
    if has_stepped is None:
        found = list(scaler._found_inf_per_device(optimizer).values())
        # A new tensor: `update` adds those of other optimizers to this one.
        is_skipped = torch.stack([one.to(found[0].device, non_blocking=True) for one in found]).sum()
    scaler.update()
    return is_skipped if has_stepped is None else not has_stepped


def get_grad_scaler(
    distributed_type: DistributedType | str | None = None, **kwargs: Any
) -> torch.amp.GradScaler:
    """Return a gradient scaler for this process's device.

    Args:
        distributed_type: The kind of distributed run; sharded parameters need a scaler that sees all shards.
        **kwargs: Arguments of `torch.amp.GradScaler`.
    """
    if distributed_type == DistributedType.FSDP:
        from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

        return ShardedGradScaler(**kwargs)
    from accel_state import PartialState

    return LossScaler(PartialState().device.type, **kwargs)


def _may_have_gradients(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Whether ``optimizer`` has a gradient here, or maybe on another rank with which steps are skipped together."""
    return (isinstance(scaler, LossScaler) and scaler.is_shared) or _has_gradients(optimizer)


def _has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    return any(True for _ in _gradients(optimizer))


def _gradients(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                yield parameter.grad


def _stage(scaler: torch.amp.GradScaler, optimizer: torch.optim.Optimizer) -> OptState:
    # torch has no public way to ask; its own step() looks at the same entry.
    states = scaler._per_optimizer_states
    return states[id(optimizer)]["stage"] if id(optimizer) in states else OptState.READY
