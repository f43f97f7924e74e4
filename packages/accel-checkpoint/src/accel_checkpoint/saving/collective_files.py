"""Files of which every rank holds a part: all ranks take part in writing, tensor by tensor, and one of them writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from accel_checkpoint.formats.deferred import DeferredTensor
from accel_checkpoint.saving.pending_files import PendingFile, write_file
from accel_checkpoint.saving.progress import Progress
from accel_checkpoint.saving.sink import FileSink
from accel_checkpoint.saving.snapshot import HostBuffers

T = TypeVar("T")


@dataclass(frozen=True)
class CollectiveFile:
    """One rank's share in such a file.

    Attributes:
        order: The tensors that all ranks fetch together, in the order in which the file is written.
        file: The file, on the rank that writes it; None on the others.
    """

    order: Sequence[DeferredTensor]
    file: PendingFile | None

    def snapshot(self, buffers: HostBuffers) -> PendingFile | None:
        """Fetch everything, and return the file in the memory of the rank that writes it. All ranks together."""
        return self._taking_part(lambda file: file.snapshot(buffers))

    def write(
        self, folder: Path, *, replace: bool = False, progress: Progress | None = None
    ) -> FileSink | None:
        """Write the file while it is fetched, and return its sink on the rank that writes. All ranks together."""
        return self._taking_part(lambda file: write_file(file, folder, replace=replace, progress=progress))

    def _taking_part(self, use: Callable[[PendingFile], T]) -> T | None:
        before = [tensor.num_fetched for tensor in self.order]
        try:
            return None if self.file is None else use(self.file)
        finally:
            # Also after an error, such as a full disk: the other ranks wait in these collectives.
            for tensor, count in zip(self.order, before, strict=True):
                if tensor.num_fetched == count:
                    tensor.fetch()
