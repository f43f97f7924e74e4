"""Load the offloaded weights of a module for its forward pass, or ahead of it, and put placeholders back afterwards."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from accel_bigmodel.offload.placeholders import set_values, weight_of
from accel_bigmodel.offload.weight import OffloadedWeight, forwards
from accel_bigmodel.tensors import assign, forget_int8_values, is_int8
from accel_state.errors import AccelError


class Slot:
    """A parameter or buffer of a module that is a placeholder between forward passes.

    Args:
        owner: The module.
        name: Its name in the module.
        placeholder: The placeholder.
    """

    def __init__(self, owner: nn.Module, name: str, placeholder: torch.Tensor) -> None:
        self.owner, self.name, self.placeholder = owner, name, placeholder
        self.weight: OffloadedWeight = vars(placeholder)["_weight"]
        self._num_uses = 0
        self._is_int8 = is_int8(placeholder)
        if self._is_int8:
            forget_int8_values(owner)

    def fill(self) -> None:
        """Insert the live value, unless other code has replaced the placeholder: that remains."""
        self._follow_conversion()
        weight = self.weight
        with weight.lock:
            now = self._table().get(self.name)
            if now is self.placeholder or weight.is_value(now):
                assign(self.owner, self.name, weight.acquire(self.placeholder))
                self._num_uses += 1

    def empty(self) -> None:
        """End one use of the value; the last one puts the placeholder back."""
        weight = self.weight
        with weight.lock:
            if self._num_uses == 0:
                return  # it was not filled
            self._num_uses -= 1
            now = self._table().get(self.name)
            is_value, is_buffer = weight.is_value(now), not isinstance(self.placeholder, nn.Parameter)
            if is_value and is_buffer and self.owner.training:
                weight.store_live_if_changed()  # kernels update running statistics without bumping the version
            weight.release()
            if is_value and self._num_uses == 0:
                assign(self.owner, self.name, self.placeholder)
                if self._is_int8:
                    forget_int8_values(self.owner)
            elif is_buffer and now is not None and not is_value:
                set_values(self.placeholder, weight, now)  # the forward replaced a buffer
                assign(self.owner, self.name, self.placeholder)

    def restore(self, device: torch.device) -> None:
        """Put the weight into the module permanently."""
        self._follow_conversion()
        if self._table().get(self.name) is self.placeholder:
            setattr(self.owner, self.name, self.weight.resident(self.placeholder, device))

    def _follow_conversion(self) -> None:
        """Use the placeholder by which a conversion of the module, such as ``half``, has replaced that of a buffer."""
        now: Any = self._table().get(self.name)
        if now is not self.placeholder and (weight := weight_of(now)) is not None:
            self.placeholder, self.weight = now, weight

    def _table(self) -> dict[str, Any]:
        owner: Any = self.owner
        table: dict[str, Any] = (
            owner._parameters if isinstance(self.placeholder, nn.Parameter) else owner._buffers
        )
        return table


class Residency:
    """Loads the weights of one module for its forward pass; reentrant, also in several threads.

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
        """Insert the values; each call, also one by a hook of torch, needs an `offload`."""
        forwards.enter()
        filled: list[Slot] = []
        try:
            for slot in self.slots:
                slot.fill()
                filled.append(slot)
        except BaseException:
            self._empty(filled)
            raise

    def offload(self, *_: Any) -> None:
        """Undo one `onload`."""
        self._empty(self.slots)

    def _empty(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            slot.empty()
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
            threading.Thread(
                target=self._fetch, args=(following,), name="accel-prefetch", daemon=True
            ).start()
        else:
            self._fetch(following)  # the system reads ahead on its own: nothing here waits for it

    def _fetch(self, block: Residency) -> None:
        for weight in block.weights:
            try:
                with torch.no_grad():
                    weight.prefetch()
            except (AccelError, OSError, RuntimeError, KeyError):
                return  # the forward pass loads it again, and raises the error
            if self._predicted is not block:
                _discard(block)
                return

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefetcher:
        copied: Prefetcher = memo.setdefault(id(self), Prefetcher())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, ()


def _discard(block: Residency) -> None:
    for weight in block.weights:
        weight.discard_prefetched()
