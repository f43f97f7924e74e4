"""Follow changes of the trained parameters: DDP's reducer knows those of when it was built, and no others.

A change is noticed by what a backward leaves behind, and takes effect at its end. By then the ranks have averaged the
other gradients together: all of them are there, and none has stepped.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import PrefixStore

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

    def update(self, *, before_step: bool = False) -> None:
        """Look at what backward left behind. Communicates if the trained parameters of a model changed.

        ``before_step`` is for scripts that call `loss.backward()`, and does nothing in others.

        Raises:
            StateError: If the ranks train different parameters: on each, in the backward after the change.
        """
        self._follows_backward |= not before_step
        models = [model for model in self if model.require_backward_grad_sync]
        if not models or (before_step and self._follows_backward):
            return
        before, self._updated_at = self._updated_at, time.monotonic()
        doubtful = [self._apart] if self._apart else []
        for model in models:
            if model.may_have_changed() and (apart := _update(model, is_apart=bool(doubtful))):
                self._apart = apart
        if self._updated_at - before > DEADLINE_S / 2:  # as long as if another rank had waited for this one
            doubtful += [_Agreement(model) for model in models]
        for agreement in doubtful:
            agreement.check()


def _update(model: TrackedDDP, *, is_apart: bool) -> _Agreement | None:
    """Average what is left, and rebuild the reducer if the ranks agree; return the agreement if they do not."""
    thawed = model.track.has_thawed  # for a part of this accumulation, maybe
    named = model.parameters_by_name()
    trained = {one: name for name, one in named if one.requires_grad or (thawed and one.grad is not None)}
    added = [one for one in trained if one not in model.reduced]
    removed = [one for one in model.reduced if one not in trained]
    if trained and removed and not model.track.is_filled and (added or not model.is_averaged()):
        model.track.is_filled = True
        _average_as_they_are(removed)
    # Another backward of this forward may follow; if none does, torch raises in the next forward.
    if not model.is_averaged() or is_apart:
        return None
    if not added and not model.track.is_filled:
        model.num_registered = Registered.num
        return None
    torch.zeros(1, device=model.device).item()  # wait for the reducer: from here on no rank is far behind
    texts = [f"trains `{trained[one]}` {tuple(one.shape)}" for one in added]
    texts += [f"no longer trains `{model.reduced[one]}`" for one in removed]
    agreement = _Agreement(model)
    if not agreement.reach(", ".join(sorted(texts)).replace("_orig_mod.", "")):
        warn_user(agreement.difference(), main_process_only=False)
        return agreement
    model.num_changes += 1
    _average_added(model, added)
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
    # The host waits for the device, once after each change: gradients that no rank has stay None.
    for one, is_reached in zip(added, has_gradient.tolist(), strict=True):
        dist.broadcast(one.detach(), dist.get_global_rank(group, 0), group)
        if is_reached:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad / group.size()
            dist.all_reduce(one.grad, group=group)


class _Agreement:
    """What each rank says about a change, in the store of the process group, where no rank waits for ever."""

    def __init__(self, model: TrackedDDP) -> None:
        group: dist.ProcessGroup = model.process_group
        self._store = PrefixStore(f"accel_ddp/{model.number}/{model.num_changes}", group.get_group_store())
        self._rank, self._size = group.rank(), group.size()
        self._name = type(innermost(model)).__name__

    def reach(self, change: str) -> bool:
        """Whether all ranks noticed the same change; they all get the same answer."""
        self._store.set(str(self._rank), change)
        if self._store.compare_set("change", "", change).decode() != change:
            self._store.compare_set("outcome", "", "apart")
        self._arrive("outcome", "agreed")
        return self._store.compare_set("outcome", "", "apart") == b"agreed"

    def check(self) -> None:
        """Raise if the ranks did not agree, when all have read what the others said."""
        if self._store.check(["outcome"]):
            error = StateError(self.difference())
            self._arrive("all_read", "yes")  # the store may end with the process of a rank that raises
            raise error

    def difference(self) -> str:
        """Return what each rank noticed."""
        said: dict[str, list[str]] = {}
        for rank in map(str, range(self._size)):
            is_there = self._store.check([rank])
            said.setdefault(self._store.get(rank).decode() if is_there else "goes on as before", []).append(
                rank
            )
        lines = "".join(f"\n  - Process {', '.join(ranks)} {text[:1000]}" for text, ranks in said.items())
        return (
            f"The ranks train different parameters of `{self._name}`, whose gradients cannot be averaged. Freeze, "
            f"unfreeze, add and replace the same parameters on all ranks, before the same batch.{lines}"
        )

    def _arrive(self, key: str, value: str) -> None:
        """Wait until the last rank has set ``key``, or the time is up."""
        if self._store.add(f"{key}/arrived", 1) == self._size:
            self._store.compare_set(key, "", value)
        with suppress(
            RuntimeError
        ):  # the kinds of store raise different errors when time is up, all of them this one
            self._store.wait([key], timedelta(seconds=DEADLINE_S))
