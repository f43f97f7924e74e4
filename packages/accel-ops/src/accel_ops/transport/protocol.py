"""What a way to the other ranks must offer: three collectives on flat tensors, and the sharing of frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from accel_ops.frames import FrameTable
    from accel_ops.transport.bulletin import Bulletin


class Transport(Protocol):
    """A way to the other ranks. All of them must make the same calls in the same order; each call blocks.

    The tensors given are one-dimensional and contiguous, have the same length and dtype on every rank, and
    live on a device that ``home`` returned.
    """

    rank: int
    world_size: int
    #: Of the same shape on every rank.
    frames: FrameTable
    #: Tensors of several dtypes may travel as bytes in one buffer; otherwise there is one buffer per dtype.
    packs_bytes: bool
    #: Where frames (headers, pickled objects, shapes) travel.
    control_device: torch.device

    def home(self, device: torch.device) -> torch.device:
        """Return the device on which tensors of ``device`` travel: itself, or the nearest that is served."""
        ...

    def is_framed(self, device: torch.device) -> bool:
        """Tell whether tensors on this device are preceded by a frame whose header every rank checks."""
        ...

    def share(self, frames: FrameTable) -> None:
        """Send this rank's row of the table to all and receive theirs in the other rows."""
        ...

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the tensors of all ranks as rows of ``(world_size, len(flat))``, in memory of their own."""
        ...

    def all_reduce(self, flat: torch.Tensor) -> torch.Tensor:
        """Return the sum over the ranks; ``flat`` may be overwritten."""
        ...

    def broadcast(self, flat: torch.Tensor, *, source: int) -> torch.Tensor:
        """Return the tensor of rank ``source``; elsewhere ``flat`` may be overwritten."""
        ...

    @property
    def store(self) -> Store:
        """The ranks' common store of keys and values, beside the collectives; always the same object."""
        ...

    def bulletin(self) -> Bulletin:
        """Return the board that reaches the other ranks beside the collectives, for the debug mode."""
        ...
