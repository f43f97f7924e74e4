"""One offloaded weight: stored, or live on its device while it has users."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bigmodel.offload.transfer import Transfer, is_copied, start_transfer
from accel_bigmodel.offload.weights_map import is_shared
from accel_bigmodel.tensors.kinds import as_parameter_like, kind_of, resident_class
from accel_state.errors import ConfigError, StateError

_CPU = torch.device("cpu")


@dataclass
class _Live:
    """The values on their device while they have users."""

    tensor: torch.Tensor
    shares_memory: bool  # with the stored values: nothing was copied
    num_users: int = 0

    def __post_init__(self) -> None:
        self._version = self.tensor._version
        self._memory = self.tensor.untyped_storage()  # held, so that no other memory takes its address

    @property
    def is_written(self) -> bool:
        """Whether the tensor was written to, or was given other memory (``tensor.data = …``)."""
        is_same = self.tensor.untyped_storage()._cdata == self._memory._cdata
        return self.tensor._version != self._version or not is_same


class OffloadedWeight:
    """The values of one weight, stored or on their device.

    Between uses they are stored in ``weights``. The weight gets its own memory as soon as it is written to, or can be
    written to through a view or an array that the caller still holds, so that no write is lost.

    Args:
        weights: Stored weights by name.
        key: The name in ``weights``.
        name: The name in the model, for messages.
        device: Where the values are used.
        dtype: The dtype in the model; values stored in another dtype are converted at each use.
        copy_on_write: The stored tensors belong to the caller: copy them before they may be written to.
    """

    def __init__(
        self,
        weights: Mapping[str, Any],
        key: str,
        *,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        copy_on_write: bool = False,
    ) -> None:
        self.weights, self.key, self.name, self.device, self.dtype = weights, key, name, device, dtype
        self.lock = threading.RLock()
        self._copy_on_write = copy_on_write
        self._own: torch.Tensor | None = None
        self.is_changed = False  # whether other values than those in `weights` were stored
        self._live: _Live | None = None
        self._transfer: Transfer | None = None
        self._shared: weakref.ref[torch.Tensor] | None = None
        self._resident: weakref.ref[torch.Tensor] | None = None

    @property
    def is_live(self) -> bool:
        """Whether the values have users now."""
        return self._live is not None

    @property
    def is_fetched(self) -> bool:
        """Whether the values have been prefetched."""
        return self._transfer is not None

    def is_value(self, tensor: object) -> bool:
        """Whether ``tensor`` is the live value."""
        return self._live is not None and self._live.tensor is tensor

    def stored(self) -> torch.Tensor:
        """Return the stored values in the dtype of the model; read only."""
        return self._converted(self._stored_tensor())

    def shared_values(self) -> torch.Tensor:
        """Return the stored values for a state dict, the same memory under all names of tied weights."""
        with self.lock:
            shared = None if self._shared is None else self._shared()
            if shared is None:
                kept = self._stored_tensor()
                stored = self._converted(kept)
                if stored is kept and not self._copy_on_write:
                    self._own = stored
                shared = stored.detach()
                self._shared = weakref.ref(shared)
            return shared

    def acquire(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the values on their device, the same tensor until all users have released it."""
        with self.lock:
            if self._live is None:
                self._live = self._make_live(placeholder)
            self._live.num_users += 1
            return self._live.tensor

    def release(self) -> None:
        """End one use; the last one stores what was written."""
        with self.lock:
            live = self._live
            assert live is not None
            live.num_users -= 1
            if live.num_users == 0:
                self._live = None
                if live.is_written:
                    self.store(live.tensor)

    def store_live_if_changed(self) -> None:
        """Store the live values if they differ from the stored ones, however they were written."""
        with self.lock:
            if self._live is not None and not torch.equal(
                self._live.tensor.detach().to("cpu"), self.stored()
            ):
                self.store(self._live.tensor)

    def in_place(self, placeholder: torch.Tensor) -> torch.Tensor:
        """Return the stored values themselves, as a parameter or buffer, for reading and writing."""
        with self.lock:
            if self._live is not None and self._live.shares_memory:
                return self._live.tensor
            with torch.inference_mode(False), torch.no_grad():
                return self._as_member(
                    placeholder, self._writable(), is_trained=self._is_trained(placeholder)
                )

    def store(self, values: torch.Tensor) -> None:
        """Store ``values`` as the weight's own memory."""
        with self.lock, torch.inference_mode(False), torch.no_grad():
            own = values.detach()
            self._own = own if own.is_meta else own.to(_CPU)
            self.dtype, self.is_changed = own.dtype, True
            self._transfer = self._shared = None
            if self._live is not None:
                self._live.__post_init__()  # writes until now are out of date

    def use_on(self, device: torch.device) -> None:
        """Change the device, from the next use on."""
        with self.lock:
            if device != self.device:
                self.device, self._transfer = device, None

    def prefetch(self) -> None:
        """Start to copy the values to their device, or read them into memory; called from a background thread."""
        with self.lock:
            if self._live is None and self._transfer is None:
                self._transfer = start_transfer(self._source(), self.device, prefetch=True)

    def discard_prefetched(self) -> None:
        """Discard prefetched values that were not used."""
        with self.lock:
            self._transfer = None

    def resident(self, placeholder: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the values as they stay in the model, the same tensor for all tied weights.

        Only values of the caller or of a file are copied; other stored weights are no longer kept alive.
        """
        made = None if self._resident is None else self._resident()
        if made is None or made.device != device:
            is_users = self._copy_on_write and self._own is None
            made = self.stored().to(device, copy=is_users or not is_shared(self.weights, self.key))
            if isinstance(placeholder, nn.Parameter):
                made = as_parameter_like(placeholder, made)
            self._resident = weakref.ref(made)
            self.weights = {} if self._own is not None else {self.key: self.weights[self.key]}
        return made

    def _stored_tensor(self) -> torch.Tensor:
        if self._own is not None:
            return self._own
        tensor: torch.Tensor = self.weights[self.key]
        return tensor

    def _converted(self, kept: torch.Tensor) -> torch.Tensor:
        return kept if kept.dtype == self.dtype else kept.to(self.dtype)

    def _writable(self) -> torch.Tensor:
        """Return the stored values, in memory that belongs to this weight alone."""
        kept = self._stored_tensor()
        values = self._converted(kept)
        if self._own is None and self._copy_on_write:
            values = values.clone() if values is kept else values
            self.store(values)
        return values

    def _source(self) -> torch.Tensor:
        return self.stored() if is_copied(self.device) else self._writable()

    def _make_live(self, placeholder: torch.Tensor) -> _Live:
        is_trained = self._is_trained(placeholder)
        with torch.inference_mode(False), torch.no_grad():
            transfer, self._transfer = self._transfer, None
            values = (transfer or start_transfer(self._source(), self.device)).wait()
            if values.shape != placeholder.shape and kind_of(resident_class(placeholder)).has_shape_of_values:
                raise ConfigError(
                    f"`{self.name}` has the shape {tuple(placeholder.shape)}, but its stored weights have "
                    f"{tuple(values.shape)}. Give the weights of this model."
                )
            tensor = self._as_member(placeholder, values, is_trained=is_trained)
        return _Live(tensor, shares_memory=not is_copied(self.device))

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
            f"The gradient of `{self.name}` would be lost, because the weight is offloaded after the forward pass. "
            "Call `requires_grad_(False)` on weights that are not trained, or do not offload them."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> OffloadedWeight:
        if id(self) not in memo:
            weights = self.weights if self._copy_on_write else copy.deepcopy(self.weights, memo)
            copied = OffloadedWeight(
                weights, self.key, name=self.name, device=self.device, dtype=self.dtype,
                copy_on_write=self._copy_on_write,
            )  # fmt: skip
            copied._own = None if self._own is None else self._own.clone()
            copied.is_changed = self.is_changed
            memo[id(self)] = copied
        found: OffloadedWeight = memo[id(self)]
        return found

    def __reduce__(self) -> Any:
        raise StateError(
            f"`{self.name}` is offloaded, and an offloaded model cannot be pickled. Save its weights with `save_model` "
            "(or `save_pretrained`), then load and offload them where the model is needed."
        )
