"""One offloaded weight: absent, or live with users; and what was written to it."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bigmodel.offload.transfer import Transfer, start_transfer
from accel_bigmodel.tensors.kinds import as_parameter_like
from accel_state.errors import StateError

_CPU = torch.device("cpu")


@dataclass(slots=True)
class _Live:
    """The values on their device while someone uses them."""

    tensor: torch.Tensor
    version: int
    shares_memory: bool  # with where they are kept: nothing was copied
    num_users: int = 0


class OffloadedWeight:
    """The values of one weight, wherever they are.

    Between uses they are kept in ``weights``. The weight gets memory of its own once something was written to it, or
    could be written through a view or an array that the caller still holds: every write is kept.

    Args:
        weights: Stored weights by name.
        key: The name in ``weights``.
        name: The name in the model, for messages.
        device: Where the values are used.
        dtype: Of the weight in the model; what is stored in another dtype is converted at each use.
        is_borrowed: The stored tensors belong to someone else: they are copied before the first use in place.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        key: str,
        *,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        is_borrowed: bool = False,
    ) -> None:
        self.weights, self.key, self.name, self.device, self.dtype = weights, key, name, device, dtype
        self.lock = threading.RLock()
        self._is_borrowed = is_borrowed
        self._own: torch.Tensor | None = None
        self._live: _Live | None = None
        self._transfer: Transfer | None = None
        self._shared: weakref.ref[torch.Tensor] | None = None
        self._resident: weakref.ref[torch.Tensor] | None = None

    @property
    def is_live(self) -> bool:
        """Whether someone uses the values now."""
        return self._live is not None

    @property
    def is_fetched(self) -> bool:
        """Whether the values were fetched ahead."""
        return self._transfer is not None

    def is_value(self, tensor: object) -> bool:
        """Whether ``tensor`` is the live value."""
        return self._live is not None and self._live.tensor is tensor

    def stored(self) -> torch.Tensor:
        """Return the values where they are kept, in the dtype of the model; only to be read."""
        return self._converted(self._kept())

    def shared_values(self) -> torch.Tensor:
        """Return the values where they are kept, for a state dict: for all names of tied weights the same memory."""
        with self.lock:
            shared = None if self._shared is None else self._shared()
            if shared is None:
                kept = self._kept()
                stored = self._converted(kept)
                if stored is kept and not self._is_borrowed:
                    self.keep(stored)
                shared = stored.detach()
                self._shared = weakref.ref(shared)
            return shared

    def acquire(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the values on their device, the same tensor until everyone has released it."""
        with self.lock:
            if self._live is None:
                self._live = self._bring(placeholder)
            self._live.num_users += 1
            return self._live.tensor

    def release(self) -> None:
        """End one use; after the last one, what was written is kept."""
        with self.lock:
            live = self._live
            assert live is not None
            live.num_users -= 1
            if live.num_users == 0:
                self._live = None
                if live.tensor._version != live.version:
                    self.keep(live.tensor)

    def keep_live_if_changed(self) -> None:
        """Keep the live values if they differ from the stored ones, by whatever way they were written."""
        with self.lock:
            if self._live is not None and not torch.equal(
                self._live.tensor.detach().to("cpu"), self.stored()
            ):
                self.keep(self._live.tensor)

    def in_place(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the values where they are kept, as a member of a module, to be read and written."""
        with self.lock:
            if self._live is not None and self._live.shares_memory:
                return self._live.tensor
            with torch.inference_mode(False), torch.no_grad():
                return self._as_member(
                    placeholder, self._writable(), is_trained=self._is_trained(placeholder)
                )

    def keep(self, values: torch.Tensor) -> None:
        """Make ``values`` the memory of this weight."""
        with self.lock, torch.inference_mode(False), torch.no_grad():
            own = values.detach()
            self._own = own if own.is_meta else own.to(_CPU)
            self.dtype = own.dtype
            self._transfer = self._shared = None

    def use_on(self, device: torch.device) -> None:
        """Use the values on another device from the next use on."""
        with self.lock:
            if device != self.device:
                self.device, self._transfer = device, None

    def prefetch(self) -> None:
        """Bring the values close to where they are used; called in another thread, before they are needed."""
        with self.lock:
            if self._live is None and self._transfer is None:
                self._transfer = start_transfer(self._source(), self.device, ahead=True)

    def forget(self) -> None:
        """Drop what was prefetched and not used."""
        with self.lock:
            self._transfer = None

    def resident(self, placeholder: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy of the values to stay in the model, one for all places of tied weights."""
        made = None if self._resident is None else self._resident()
        if made is None or made.device != device:
            made = self.stored().to(device, copy=True)
            if isinstance(placeholder, nn.Parameter):
                made = as_parameter_like(placeholder, made)
            self._resident = weakref.ref(made)
        return made

    def _kept(self) -> torch.Tensor:
        if self._own is not None:
            return self._own
        tensor: torch.Tensor = self.weights[self.key]
        return tensor

    def _converted(self, kept: torch.Tensor) -> torch.Tensor:
        return kept if kept.dtype == self.dtype else kept.to(self.dtype)

    def _writable(self) -> torch.Tensor:
        """Return the values where they are kept, in memory that nobody else reads or writes."""
        kept = self._kept()
        values = self._converted(kept)
        if self._own is None and self._is_borrowed:
            values = values.clone() if values is kept else values
            self.keep(values)
        return values

    def _source(self) -> torch.Tensor:
        return self._writable() if self.device.type == "cpu" else self.stored()

    def _bring(self, placeholder: torch.Tensor) -> _Live:
        is_trained = self._is_trained(placeholder)
        with torch.inference_mode(False), torch.no_grad():
            transfer, self._transfer = self._transfer, None
            values = (transfer or start_transfer(self._source(), self.device)).take()
            tensor = self._as_member(placeholder, values, is_trained=is_trained)
        return _Live(tensor, tensor._version, shares_memory=self.device.type == "cpu")

    @staticmethod
    def _is_trained(placeholder: torch.Tensor) -> bool:
        return torch.is_grad_enabled() and placeholder.requires_grad

    def _as_member(
        self, placeholder: torch.Tensor, values: torch.Tensor, *, is_trained: bool
    ) -> torch.Tensor:
        if not isinstance(placeholder, nn.Parameter):
            return values
        parameter = as_parameter_like(placeholder, values)
        parameter.requires_grad_(is_trained)
        if is_trained:
            parameter.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]
        return parameter

    def _refuse_gradient(self, gradient: torch.Tensor) -> None:
        raise StateError(
            f"The gradient of `{self.name}` would be lost: the weight is offloaded and gone after the forward. Call "
            "`requires_grad_(False)` on what is not trained, or do not offload it."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedWeight:
        if id(self) not in memo:
            weights = self.weights if self._is_borrowed else copy.deepcopy(self.weights, memo)
            copied = OffloadedWeight(
                weights, self.key, name=self.name, device=self.device, dtype=self.dtype,
                is_borrowed=self._is_borrowed,
            )  # fmt: skip
            copied._own = None if self._own is None else self._own.clone()
            memo[id(self)] = copied
        found: OffloadedWeight = memo[id(self)]
        return found

    def __reduce__(self) -> Any:
        raise StateError(
            f"`{self.name}` is offloaded, and an offloaded model cannot be pickled. Save its weights with `save_model` "
            "(or `save_pretrained`), and load and offload them again where the model is needed."
        )
