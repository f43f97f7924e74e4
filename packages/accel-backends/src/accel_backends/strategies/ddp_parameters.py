"""Follow changes of the trained parameters: DDP's reducer knows those of when it was built, and no others.

A change is noticed by what a backward leaves behind, and takes effect at its end. By then the ranks have averaged the
other gradients together: all of them are there, and none has stepped.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterator, Mapping
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from accel_backends.strategies.ddp_averaging import Registered, TrackedDDP
from accel_backends.unwrap import innermost
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user

DEADLINE_S = 10.0
"""How long a rank that noticed a change waits for the others to notice it in the same backward."""


class Reducers:
    """The prepared models that are alive, whose reducers it builds anew when other parameters are trained."""

    def __init__(self) -> None:
        self._models: list[weakref.ref[TrackedDDP]] = []
        self._updated_at = time.monotonic()
        self._apart: _Agreement | None = None
        self._follows_backward = False

    def add(self, model: TrackedDDP) -> None:
        """Follow ``model``. All ranks add the same models in the same order."""
        self._models.append(weakref.ref(model, self._models.remove))

    def __iter__(self) -> Iterator[TrackedDDP]:
        return (model for reference in self._models if (model := reference()) is not None)

    def update_after_backward(self) -> None:
        """Look at what a backward has left behind. Communicates if the trained parameters of a model changed.

        Raises:
            StateError: If the ranks train different parameters: on each, in the backward after the change.
        """
        self._follows_backward = True
        self._update()

    def update_before_step(self) -> None:
        """Do the same for a script that calls `loss.backward()`."""
        if not self._follows_backward:
            self._update()

    def _update(self) -> None:
        models = [model for model in self if model.require_backward_grad_sync]
        if not models:
            return
        before, self._updated_at = self._updated_at, time.monotonic()
        apart = self._apart
        for model in models:
            if model.may_have_changed():
                self._apart = _update(model, is_apart=apart is not None) or apart
        if apart is not None:
            raise apart.error()
        if self._updated_at - before > DEADLINE_S / 2:  # as long as if another rank had waited for this one
            for model in models:
                agreement = _Agreement(model)
                if agreement.has_failed():
                    raise agreement.error()


def _update(model: TrackedDDP, *, is_apart: bool) -> _Agreement | None:
    """Average what is left, and rebuild the reducer if the ranks agree; return the agreement if they do not."""
    trained = {name: one for name, one in model.parameters_by_name() if model.has_own_gradient(one)}
    now = set(trained.values())
    added = {name: one for name, one in trained.items() if one not in model.reduced}
    removed = {name: one for one, name in model.reduced.items() if one not in now}
    if now and removed and not model.track.is_filled and (added or not model.is_averaged()):
        model.track.is_filled = True
        _average_as_they_are(removed.values())
    # Another backward of this forward may follow; if none does, torch raises in the next forward.
    if not model.is_averaged() or is_apart:
        return None
    if not added and not model.track.is_filled:
        model.num_registered = Registered.num
        return None
    torch.zeros(1, device=model.device).item()  # wait for the reducer: from here on no rank is far behind
    agreement = _Agreement(model)
    if not agreement.reach(added, removed):
        warn_user(agreement.difference(), main_process_only=False)
        return agreement
    model.num_changes += 1
    _average_added(model, added.values())
    model.rebuild()
    return None


def _average_as_they_are(removed: Collection[nn.Parameter]) -> None:
    """Complete the buckets that wait for parameters which backward did not reach, with the gradients they have."""
    before = [(one, one.requires_grad, one.grad is None) for one in removed]
    for one in removed:
        one.requires_grad_(True)
    torch.autograd.backward(list(removed), [torch.zeros_like(one) for one in removed])
    for one, requires_grad, has_none in before:
        one.requires_grad_(requires_grad)
        if has_none:
            one.grad = None


@torch.no_grad()
def _average_added(model: TrackedDDP, added: Collection[nn.Parameter]) -> None:
    """Do for parameters that the reducer does not know what it did for the others, and give them rank 0's values."""
    group: dist.ProcessGroup = model.process_group
    has_gradient = torch.tensor(
        [one.grad is not None for one in added], dtype=torch.uint8, device=model.device
    )
    dist.all_reduce(has_gradient, dist.ReduceOp.MAX, group)
    for one, is_reached in zip(added, has_gradient.tolist(), strict=True):
        dist.broadcast(one.detach(), dist.get_global_rank(group, 0), group)
        if is_reached:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad / group.size()
            dist.all_reduce(one.grad, group=group)


class _Agreement:
    """What each rank says about a change, in the store of the process group, where no rank waits for ever."""

    def __init__(self, model: TrackedDDP) -> None:
        group: dist.ProcessGroup = model.process_group
        prefix = f"accel_ddp/{model.number}/{model.num_changes}"
        self._store = dist.PrefixStore(prefix, group.get_group_store())
        self._rank, self._size = group.rank(), group.size()
        self._name = type(innermost(model)).__name__

    def reach(self, added: Mapping[str, nn.Parameter], removed: Mapping[str, nn.Parameter]) -> bool:
        """Whether all ranks noticed the same change; they all get the same answer."""
        here = [f"trains `{name}` {tuple(one.shape)}" for name, one in added.items()]
        here += [f"no longer trains `{name}`" for name in removed]
        text = ", ".join(sorted(here)).replace("_orig_mod.", "")
        self._store.set(str(self._rank), text)
        if self._store.compare_set("change", "", text).decode() != text:
            self._store.compare_set("outcome", "", "apart")
        if self._store.add("arrived", 1) == self._size:
            self._store.compare_set("outcome", "", "agreed")
        self._await("outcome")
        return self._store.compare_set("outcome", "", "apart") == b"agreed"

    def has_failed(self) -> bool:
        """Whether some ranks noticed a change, and others another one or none."""
        return self._store.check(["outcome"])

    def error(self) -> StateError:
        """Return what to raise, when all ranks have read it: the store may end with the process of one that raises."""
        error = StateError(self.difference())
        if self._store.add("read", 1) == self._size:
            self._store.set("all_read", "")
        self._await("all_read")
        return error

    def difference(self) -> str:
        """Return what each rank noticed."""
        said: dict[str, list[str]] = {}
        for rank in range(self._size):
            is_there = self._store.check([str(rank)])
            text = self._store.get(str(rank)).decode() if is_there else "goes on as before"
            said.setdefault(text, []).append(str(rank))
        lines = "".join(f"\n  - Process {', '.join(ranks)} {text[:1000]}" for text, ranks in said.items())
        return (
            f"The ranks train different parameters of `{self._name}`, whose gradients cannot be averaged. Freeze, "
            f"unfreeze, add and replace the same parameters on all ranks, before the same batch.{lines}"
        )

    def _await(self, key: str) -> None:
        try:
            self._store.wait([key], timedelta(seconds=DEADLINE_S))
        except RuntimeError:  # time is up
            pass
