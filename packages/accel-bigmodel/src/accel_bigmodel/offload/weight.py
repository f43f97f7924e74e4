"""One offloaded weight: stored, or live on its device while it has users."""

from __future__ import annotations

import copy
import threading
import weakref
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import nn

from accel_bigmodel import transfers
from accel_bigmodel.offload.store import StoredWeight
from accel_bigmodel.tensors import as_parameter_like, has_shape_of_values
from accel_bigmodel.transfers import Transfer, start_transfer
from accel_state.errors import ConfigError, StateError

_CPU = torch.device("cpu")


class _Live:
    """The values on their device while they have users, which may compute in different streams."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.num_users = 0
        self._order = transfers.streams_of(tensor.device)
        self._streams = [] if self._order is None else [self._order.current()]
        self.mark_stored()

    def join(self) -> torch.Tensor:
        """Return the tensor for the current stream, which waits for the copy and for earlier users' writes."""
        if self._order is not None and (stream := self._order.current()) not in self._streams:
            for earlier in self._streams:
                stream.wait_stream(earlier)
            self._order.record_use(self.tensor)
            self._streams.append(stream)
        return self.tensor

    def join_all(self) -> torch.Tensor:
        """Return the tensor for the current stream, which waits for all users."""
        for stream in self._streams:
            if self._order is not None and stream != self._order.current():
                self._order.current().wait_stream(stream)
        return self.tensor

    def mark_stored(self) -> None:
        """Record that everything written until now is stored."""
        self._version = self.tensor._version
        self._memory = self.tensor.untyped_storage()  # referenced, so that no other memory takes its address

    @property
    def is_written(self) -> bool:
        """Whether the tensor was written to, or was given other memory (``tensor.data = …``)."""
        is_same = self.tensor.untyped_storage()._cdata == self._memory._cdata
        return self.tensor._version != self._version or not is_same


# Why: docs/decisions/0006-an-offloaded-weight-keeps-what-is-written.md
@dataclass(eq=False)
class OffloadedWeight:
    """The values of one weight, stored or on their device.

    On the CPU the live value is the stored tensor, on other devices a copy, which is stored again if a forward pass
    has written to it (docs/decisions/0006-an-offloaded-weight-keeps-what-is-written.md).

    Args:
        source: The stored values; replaced by a mapping of only this weight when it is written to.
        name: The name in the model, for messages.
        device: The device that uses the values.
        dtype: The dtype in the model; values stored in another dtype are converted at each use.
        is_changed: Whether the values have been replaced since the weight was offloaded.
    """

    source: StoredWeight
    name: str
    device: torch.device
    dtype: torch.dtype
    is_changed: bool = False
    num_stored: ClassVar[int] = 0
    """Number of times that a weight of any model got new memory large enough to be pinned."""
    lock: Any = field(default_factory=threading.RLock, init=False, repr=False)
    _live: _Live | None = field(default=None, init=False, repr=False)
    _prefetched: Transfer | None = field(default=None, init=False, repr=False)
    _shared: weakref.ref[torch.Tensor] | None = field(default=None, init=False, repr=False)
    _resident: torch.Tensor | None = field(default=None, init=False, repr=False)

    @property
    def is_live(self) -> bool:
        """Whether the values have users now."""
        return self._live is not None

    @property
    def is_fetched(self) -> bool:
        """Whether the values have been prefetched."""
        return self._prefetched is not None

    @property
    def is_copied(self) -> bool:
        """Whether the values are copied to their device; on the CPU the stored tensor is used directly."""
        return self.device.type != "cpu"

    def is_value(self, tensor: object) -> bool:
        """Whether ``tensor`` is the live value."""
        return self._live is not None and self._live.tensor is tensor

    def stored(self) -> torch.Tensor:
        """Return the stored values, of the stored shape, in the model's dtype, on the CPU; do not write to them."""
        tensor = self.source.read()
        return tensor if tensor.dtype == self.dtype else tensor.to(self.dtype)

    def memory_to_pin(self) -> torch.Tensor | None:
        """Return the stored tensor (any shape, CPU) if it is copied from ordinary memory to a device with streams."""
        if not self.is_copied or transfers.streams_of(self.device) is None or self.source.is_from_file:
            return None
        stored = self.source.read()
        return stored if stored.is_cpu and stored.dtype == self.dtype else None

    def shared_values(self) -> torch.Tensor:
        """Return the stored tensor (any shape, CPU) for a state dict, the same one for all names of a tied weight."""
        with self.lock:
            shared = None if self._shared is None else self._shared()
            if shared is None:
                shared = self.stored().detach()
                self._shared = weakref.ref(shared)
            return shared

    def acquire(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the values on their device, of the placeholder's shape: the same tensor until all users release it.

        Raises:
            ConfigError: If the stored weight has another shape than the placeholder.
        """
        with self.lock:
            if self._live is None:
                self._live = self._make_live(placeholder)
            self._live.num_users += 1
            return self._live.join()

    def release(self) -> None:
        """End one use; the last one stores the values if they were written to."""
        with self.lock:
            live = self._live
            assert live is not None
            live.num_users -= 1
            if live.num_users == 0:
                self._live = None
                if live.is_written:
                    self.store(live.join_all())

    def store_live_if_changed(self) -> None:
        """Store the live values if they differ from the stored ones, however they were written."""
        with self.lock:
            live = self._live
            if live is not None and not torch.equal(
                live.join_all().detach().to(_CPU), self.stored().to(_CPU)
            ):
                self.store(live.tensor)

    def store(self, values: torch.Tensor) -> None:
        """Store ``values``, of any shape and device, as the weight's values; a CPU tensor is not copied."""
        with self.lock, torch.inference_mode(False), torch.no_grad():
            stored = values.detach()
            stored = stored if stored.is_meta else stored.to(_CPU)
            self._change(StoredWeight({self.source.key: stored}, self.source.key), stored.dtype)
            OffloadedWeight.num_stored += transfers.is_worth_pinning(stored)
            if self._live is not None:
                self._live.mark_stored()

    def share_store_of(self, other: OffloadedWeight) -> None:
        """Use stored values and dtype of another weight, from the next use on."""
        with self.lock:
            self._change(other.source, other.dtype)

    def _change(self, source: StoredWeight, dtype: torch.dtype) -> None:
        self.source, self.dtype, self.is_changed = source, dtype, True
        self._prefetched = self._shared = None

    def in_dtype(self, dtype: torch.dtype) -> OffloadedWeight:
        """Return a weight with the same stored values and another dtype in the model."""
        return replace(self, dtype=dtype, is_changed=True)

    def use_on(self, device: torch.device) -> None:
        """Change the device, from the next use on."""
        with self.lock:
            if device != self.device:
                self.device, self._prefetched = device, None

    def prefetch(self) -> None:
        """Start to copy the values to their device, which may block, or to read them into memory."""
        with self.lock:
            if self._live is not None or self._prefetched is not None:
                return
            if self.is_copied:
                self._prefetched = self._transfer(prefetch=True)
            else:
                self.source.read_ahead()

    def _transfer(self, *, prefetch: bool = False) -> Transfer:
        transfer = start_transfer(self.stored(), self.device, prefetch=prefetch)
        if transfer.reads_stored:
            forwards.reading[transfer.stream] = transfer.event
        return transfer

    def discard_prefetched(self) -> None:
        """Discard prefetched values that were not used."""
        with self.lock:
            self._prefetched = None

    def resident(self, placeholder: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the values on ``device``, of the stored shape, to stay in the model: one tensor for all tied weights.

        Only values of the caller or of a file are copied; other stored values are released.
        """
        made, source = self._resident, self.source
        if made is None or made.device != device:
            made = self.stored().to(device, copy=source.is_callers or source.is_from_file)
            if isinstance(placeholder, nn.Parameter):
                made = as_parameter_like(placeholder, made)
            self._resident = made
            self.source = StoredWeight({source.key: made.detach()}, source.key)
        return made

    def _make_live(self, placeholder: torch.Tensor) -> _Live:
        with torch._C.DisableTorchFunctionSubclass():  # these are its metadata: there is nothing to dispatch
            shape, requires_grad = placeholder.shape, placeholder.requires_grad
        is_trained = requires_grad and torch.is_grad_enabled()
        with torch.inference_mode(False), torch.no_grad():
            transfer, self._prefetched = self._prefetched, None
            if transfer is not None:
                values = transfer.wait()
            elif self.is_copied:
                values = self._transfer().tensor
            else:
                values = self.stored()
                if self.source.is_callers:
                    values = values.clone()  # a forward pass may write to it
            if values.shape != shape and has_shape_of_values(placeholder):
                raise ConfigError(
                    f"`{self.name}` has the shape {tuple(shape)}, but its stored weights have "
                    f"{tuple(values.shape)}. Pass the weights of this model."
                )
            if isinstance(placeholder, nn.Parameter):
                values = as_parameter_like(placeholder, values, requires_grad=is_trained)
                if values.requires_grad:
                    values.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]
        return _Live(values)

    def _refuse_gradient(self, gradient: torch.Tensor) -> None:
        raise StateError(
            f"The gradient of `{self.name}` would be lost, because the weight is offloaded after the forward pass. "
            "Call `requires_grad_(False)` on weights that are not trained, or do not offload them."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedWeight:
        return replace(self, source=copy.deepcopy(self.source, memo))

    def __reduce__(self) -> Any:
        raise StateError(
            f"`{self.name}` is offloaded, and an offloaded model cannot be pickled. Save its weights with `save_model` "
            "(or `save_pretrained`), then load and offload them where the model is needed."
        )


class ForwardDepth(threading.local):
    """The nesting depth of forward passes with offloaded weights in this thread, and their resources."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_use: list[OffloadedWeight] = []
        """Weights in use."""
        self.reading: dict[Any, Any] = {}
        """The event after the last copy that reads stored values, for each stream."""

    def enter(self) -> None:
        """Enter a forward pass."""
        self.depth += 1

    def leave(self) -> None:
        """Leave a forward pass; leaving the outermost one releases the weights in use."""
        self.depth -= 1
        if self.depth == 0:
            in_use, self.in_use = self.in_use, []
            for weight in in_use:
                weight.release()
            reading, self.reading = self.reading, {}
            for event in reading.values():
                event.synchronize()  # the host waits: stored values may be written to from here on


forwards = ForwardDepth()
