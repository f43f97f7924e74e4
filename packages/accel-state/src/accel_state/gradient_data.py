"""The state that crosses batches: one small object that the training step reads without detours."""

from __future__ import annotations

import weakref
from typing import Any


class GradientData:
    """Whether gradients sync now, how they accumulate, and which loader is being read.

    ``sync_gradients`` is True when the current micro-batch ends an accumulation window. ``plugin_kwargs``
    holds the fields of the accumulation plugin.
    """

    __slots__ = (
        "__weakref__",
        "_loaders",
        "is_initialized",
        "is_xla_gradients_synced",
        "plugin_kwargs",
        "sync_gradients",
    )

    def __init__(self) -> None:
        self.sync_gradients = True
        self.plugin_kwargs: dict[str, Any] = {}
        self.is_xla_gradients_synced = False
        self.is_initialized = False
        # Weak, so that a loop left by `break` keeps neither its loader nor the loader's claim to be active.
        self._loaders: list[weakref.ref[Any]] = []

    @property
    def num_steps(self) -> int:
        """Micro-batches per optimizer step."""
        return self.plugin_kwargs.get("num_steps") or 1

    @property
    def adjust_scheduler(self) -> bool:
        """Whether the scheduler counts the micro-batches that did not step."""
        return bool(self.plugin_kwargs.get("adjust_scheduler", True))

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader always syncs."""
        return bool(self.plugin_kwargs.get("sync_with_dataloader", True))

    @property
    def sync_each_batch(self) -> bool:
        """Whether gradients are reduced on every micro-batch, to save memory."""
        return bool(self.plugin_kwargs.get("sync_each_batch", False))

    @property
    def dataloader_references(self) -> list[Any]:
        """The loaders that are being read, the outermost first."""
        return [loader for reference in self._loaders if (loader := reference()) is not None]

    @property
    def active_dataloader(self) -> Any | None:
        """The loader that is being read innermost, None outside of all loops."""
        loaders = self._loaders
        while loaders:
            loader = loaders[-1]()
            if loader is not None:
                return loader
            loaders.pop()
        return None

    @property
    def in_dataloader(self) -> bool:
        """Whether any loader is being read."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch at hand is the active loader's last; False outside of all loops."""
        loader = self.active_dataloader
        return loader is not None and bool(loader.end_of_dataloader)

    @property
    def remainder(self) -> int:
        """Real samples in the active loader's last global batch, -1 when unknown or outside of all loops."""
        loader = self.active_dataloader
        return -1 if loader is None else int(loader.remainder)

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self.sync_gradients = sync_gradients
        if sync_gradients:
            self.is_xla_gradients_synced = False

    def _add_dataloader(self, dataloader: Any) -> None:
        """Make ``dataloader`` the active one; a loader that is read anew moves to the top."""
        self._remove_dataloader(dataloader)
        self._loaders.append(weakref.ref(dataloader))

    def _remove_dataloader(self, dataloader: Any) -> None:
        """End the reading of ``dataloader``; nothing happens if it is not being read."""
        self._loaders = [
            reference
            for reference in self._loaders
            if (loader := reference()) is not None and loader is not dataloader
        ]
