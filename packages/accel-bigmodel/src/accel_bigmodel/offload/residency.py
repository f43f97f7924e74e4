"""Load the offloaded weights of a module for its forward pass, or ahead of it, and put placeholders back afterwards."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel_bigmodel.offload.placeholders import forwards, set_values, weight_of
from accel_bigmodel.offload.weight import OffloadedWeight
from accel_bigmodel.tensors import assign, forget_int8_values, is_int8
from accel_state.errors import AccelError

_IDLE_S = 2.0


class Slot:
    """A parameter or buffer of a module that is a placeholder between forward passes.

    Args:
        owner: The module.
        name: Its name in the module.
        placeholder: The placeholder.
        original_device: The device before the weight was offloaded.
    """

    def __init__(
        self, owner: nn.Module, name: str, placeholder: torch.Tensor, original_device: torch.device
    ) -> None:
        self.owner, self.name, self.placeholder = owner, name, placeholder
        self.weight: OffloadedWeight = vars(placeholder)["_weight"]
        self.original_device = original_device
        self._num_inside = 0
        self._is_int8 = is_int8(placeholder)
        if self._is_int8:
            forget_int8_values(owner)

    def fill(self) -> bool:
        """Insert the live value and return true, unless other code has replaced the placeholder: that stays."""
        self._follow_conversion()
        weight = self.weight
        with weight.lock:
            now = self._table().get(self.name)
            if now is not self.placeholder and not weight.is_value(now):
                return False
            assign(self.owner, self.name, weight.acquire(self.placeholder))
            self._num_inside += 1
            return True

    def empty(self) -> None:
        """End one use of the value; the last one puts the placeholder back."""
        weight = self.weight
        with weight.lock:
            self._num_inside -= 1
            now = self._table().get(self.name)
            is_value = weight.is_value(now)
            if is_value and self.owner.training and not isinstance(self.placeholder, nn.Parameter):
                weight.store_live_if_changed()  # kernels update running statistics without bumping the version
            weight.release()
            if is_value and self._num_inside == 0:
                assign(self.owner, self.name, self.placeholder)
                if self._is_int8:
                    forget_int8_values(self.owner)
            elif now is not None and not is_value and not isinstance(self.placeholder, nn.Parameter):
                set_values(self.placeholder, self.weight, now)  # the forward replaced a buffer
                assign(self.owner, self.name, self.placeholder)

    def restore(self) -> None:
        """Put the weight into the module permanently, on its original device."""
        self._follow_conversion()
        if self._table().get(self.name) is self.placeholder:
            setattr(self.owner, self.name, self.weight.resident(self.placeholder, self.original_device))

    def _follow_conversion(self) -> None:
        """Use the placeholder by which a conversion of the module, such as ``half``, has replaced that of a buffer."""
        now: Any = self._table().get(self.name)
        weight = weight_of(now)
        if weight is not None and now is not self.placeholder:
            self.placeholder, self.weight = now, weight

    def _table(self) -> dict[str, Any]:
        owner: Any = self.owner
        table: dict[str, Any] = (
            owner._parameters if isinstance(self.placeholder, nn.Parameter) else owner._buffers
        )
        return table


class Residency:
    """Loads the weights of one module for its forward pass; reentrant, and separate for each thread.

    Args:
        slots: The slots of the weights, in this module or its submodules.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = list(slots)

    @property
    def weights(self) -> list[OffloadedWeight]:
        """The weights of all slots."""
        return [slot.weight for slot in self.slots]

    def onload(self, *_: Any) -> None:
        """Insert the values; each call, also one by a hook of torch, needs an `offload` in the same thread."""
        filled: list[Slot] = []
        _filled.calls.setdefault(id(self), []).append(filled)
        forwards.enter()
        try:
            for slot in self.slots:
                if slot.fill():
                    filled.append(slot)
        except BaseException:
            self.offload()
            raise

    def offload(self, *_: Any) -> None:
        """Undo this thread's last `onload`."""
        calls = _filled.calls[id(self)]
        for slot in calls.pop():
            slot.empty()
        if not calls:
            del _filled.calls[id(self)]
        forwards.leave()

    @contextlib.contextmanager
    def values_in_place(self) -> Iterator[None]:
        """Within this context the values are in the module, and all writes to them are stored."""
        self.onload()
        try:
            yield
        finally:
            for weight in self.weights:
                weight.store_live_if_changed()
            self.offload()

    def follow_state_dicts(self, module: nn.Module) -> list[RemovableHandle]:
        """Register hooks that provide the values while a state dict of ``module`` is loaded.

        Torch takes a placeholder for a weight that cannot be loaded into.
        """
        untyped: Any = module
        return [
            untyped.register_load_state_dict_pre_hook(self.onload),
            untyped.register_load_state_dict_post_hook(self.offload),
        ]


class _Filled(threading.local):
    """The slots that this thread filled, a stack of calls for each residency by its identity."""

    def __init__(self) -> None:
        self.calls: dict[int, list[list[Slot]]] = {}


_filled = _Filled()


class Prefetcher:
    """Prefetches the block that followed the current one last time.

    At most one block is prefetched, so that at most two are in memory. A wrong prediction is discarded; it costs time
    and changes no result.
    """

    def __init__(self) -> None:
        self._following: dict[int, Residency] = {}
        self._current = 0
        self._predicted: Residency | None = None
        self._lock = threading.Lock()

    def block_started(self, block: Residency) -> None:
        """Record that ``block`` runs now, and prefetch the one that followed it last time."""
        with self._lock:
            predicted, self._predicted = self._predicted, None
            if predicted is not None and predicted is not block:
                _discard(predicted)
            self._following[self._current] = block
            self._current = id(block)
            following = self._following.get(self._current)
            if following is None or following is block:
                return
            self._predicted = following
        if any(weight.is_copied for weight in following.weights):
            _worker.submit(self, following)
        else:
            _fetch(self, following)  # the system reads ahead on its own: nothing here waits for it

    def expects(self, block: Residency) -> bool:
        """Whether ``block`` is still the predicted one."""
        return self._predicted is block

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefetcher:
        copied: Prefetcher = memo.setdefault(id(self), Prefetcher())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, ()


class _Worker:
    """One thread for the whole process, which ends when it is idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Prefetcher, Residency]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, prefetcher: Prefetcher, block: Residency) -> None:
        with self._lock:
            self._jobs.put((prefetcher, block))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="accel-prefetch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                prefetcher, block = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            _fetch(prefetcher, block)
            del prefetcher, block  # an idle worker keeps no model alive


def _fetch(prefetcher: Prefetcher, block: Residency) -> None:
    for weight in block.weights:
        if not prefetcher.expects(block):
            _discard(block)
            return
        try:
            with torch.no_grad():
                weight.prefetch()
        except (AccelError, OSError, RuntimeError, KeyError):
            return  # the forward pass loads it again, and raises the error


def _discard(block: Residency) -> None:
    for weight in block.weights:
        weight.discard_prefetched()


_worker = _Worker()
