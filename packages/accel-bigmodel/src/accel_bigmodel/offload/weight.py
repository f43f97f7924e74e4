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

from accel_bigmodel.offload.store import is_shared, read_ahead
from accel_bigmodel.tensors import as_parameter_like, has_shape_of_values
from accel_bigmodel.transfers import Transfer, start_transfer
from accel_state.errors import ConfigError, StateError

_CPU = torch.device("cpu")


@dataclass
class _Live:
    """The values on their device while they have users."""

    tensor: torch.Tensor
    num_users: int = 0

    def __post_init__(self) -> None:
        self._version = self.tensor._version
        self._memory = self.tensor.untyped_storage()  # referenced, so that no other memory takes its address

    @property
    def is_written(self) -> bool:
        """Whether the tensor was written to, or was given other memory (``tensor.data = …``)."""
        is_same = self.tensor.untyped_storage()._cdata == self._memory._cdata
        return self.tensor._version != self._version or not is_same


class OffloadedWeight:
    """The values of one weight, stored or on their device.

    Between uses they are stored in ``weights``. On the CPU the live value is the stored one, elsewhere a copy, which is
    stored again if a forward pass has written to it.

    Args:
        weights: Stored weights by name; replaced by a mapping of this weight alone as soon as it is written to.
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
        self.is_changed = False  # whether other values than those in the first `weights` were stored
        self._copy_on_write = copy_on_write
        self._live: _Live | None = None
        self._prefetched: Transfer | None = None
        self._shared: weakref.ref[torch.Tensor] | None = None
        self._resident: torch.Tensor | None = None

    @property
    def is_live(self) -> bool:
        """Whether the values have users now."""
        return self._live is not None

    @property
    def is_fetched(self) -> bool:
        """Whether the values have been prefetched."""
        return self._prefetched is not None

    def is_value(self, tensor: object) -> bool:
        """Whether ``tensor`` is the live value."""
        return self._live is not None and self._live.tensor is tensor

    def stored(self) -> torch.Tensor:
        """Return the stored values in the dtype of the model; read only."""
        tensor: torch.Tensor = self.weights[self.key]
        return tensor if tensor.dtype == self.dtype else tensor.to(self.dtype)

    def shared_values(self) -> torch.Tensor:
        """Return the stored values for a state dict, the same memory under all names of tied weights."""
        with self.lock:
            shared = None if self._shared is None else self._shared()
            if shared is None:
                shared = self.stored().detach()
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

    def store(self, values: torch.Tensor) -> None:
        """Store ``values`` as the weight's own memory."""
        with self.lock, torch.inference_mode(False), torch.no_grad():
            own = values.detach()
            self.weights, self._copy_on_write = {self.key: own if own.is_meta else own.to(_CPU)}, False
            self.dtype, self.is_changed = own.dtype, True
            self._prefetched = self._shared = None
            if self._live is not None:
                self._live.__post_init__()  # writes until now are out of date

    def in_dtype(self, dtype: torch.dtype) -> OffloadedWeight:
        """Return a weight with the same stored values and another dtype in the model."""
        made = OffloadedWeight(self.weights, self.key, name=self.name, device=self.device, dtype=dtype)
        made._copy_on_write, made.is_changed = self._copy_on_write, True
        return made

    def share_store_of(self, other: OffloadedWeight) -> None:
        """Use stored values and dtype of another weight, from the next use on."""
        with self.lock:
            self.weights, self.key, self.dtype = other.weights, other.key, other.dtype
            self._copy_on_write, self.is_changed, self._prefetched, self._shared = (
                other._copy_on_write,
                True,
                None,
                None,
            )

    def use_on(self, device: torch.device) -> None:
        """Change the device, from the next use on."""
        with self.lock:
            if device != self.device:
                self.device, self._prefetched = device, None

    @property
    def is_copied(self) -> bool:
        """Whether the values are copied to their device; on the CPU they are used where they are stored."""
        return self.device.type != "cpu"

    def prefetch(self) -> None:
        """Start to copy the values to their device, which may block, or to read them into memory."""
        with self.lock:
            if self._live is not None or self._prefetched is not None:
                return
            if self.is_copied:
                self._prefetched = start_transfer(self.stored(), self.device, prefetch=True)
            else:
                read_ahead(self.weights, self.key)

    def discard_prefetched(self) -> None:
        """Discard prefetched values that were not used."""
        with self.lock:
            self._prefetched = None

    def resident(self, placeholder: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return the values as they stay in the model, the same tensor for all tied weights.

        Only values of the caller or of a file are copied; other stored weights are no longer kept alive.
        """
        made = self._resident
        if made is None or made.device != device:
            must_copy = self._copy_on_write or not is_shared(self.weights, self.key)
            made = self.stored().to(device, copy=must_copy)
            if isinstance(placeholder, nn.Parameter):
                made = as_parameter_like(placeholder, made)
            self._resident, self.weights = made, {self.key: made.detach()}
            self._copy_on_write = False
        return made

    def _make_live(self, placeholder: torch.Tensor) -> _Live:
        is_trained = torch.is_grad_enabled() and placeholder.requires_grad
        with torch.inference_mode(False), torch.no_grad():
            transfer, self._prefetched = self._prefetched, None
            if transfer is not None:
                values = transfer.wait()
            elif self.is_copied:
                values = start_transfer(self.stored(), self.device).wait()
            else:
                values = self._stored_for_writing()
            if values.shape != placeholder.shape and has_shape_of_values(placeholder):
                raise ConfigError(
                    f"`{self.name}` has the shape {tuple(placeholder.shape)}, but its stored weights have "
                    f"{tuple(values.shape)}. Give the weights of this model."
                )
            if isinstance(placeholder, nn.Parameter):
                values = as_parameter_like(placeholder, values)
                values.requires_grad_(is_trained)
                if is_trained:
                    values.register_hook(self._refuse_gradient)  # type: ignore[no-untyped-call]
        return _Live(values)

    def _stored_for_writing(self) -> torch.Tensor:
        """Return the stored values, in memory that is not the caller's."""
        values = self.stored()
        if self._copy_on_write:
            values = values.clone() if values is self.weights[self.key] else values
            self.store(values)
        return values

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
            copied.is_changed = self.is_changed
            memo[id(self)] = copied
        known: OffloadedWeight = memo[id(self)]
        return known

    def __reduce__(self) -> Any:
        raise StateError(
            f"`{self.name}` is offloaded, and an offloaded model cannot be pickled. Save its weights with `save_model` "
            "(or `save_pretrained`), then load and offload them where the model is needed."
        )
