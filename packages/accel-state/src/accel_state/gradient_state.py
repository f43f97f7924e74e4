"""`GradientState`: whether gradients sync now, and which loader is being read."""

from __future__ import annotations

from typing import Any, ClassVar

from accel_state.accumulation import GradientAccumulationPlugin
from accel_state.gradient_data import GradientData
from accel_state.runtime import current_gradient, reset_gradient
from accel_state.shared_state import SharedState


def _collect() -> dict[str, Any]:
    data = current_gradient()
    if not data.is_initialized:
        return {}
    return {
        "active_dataloader": data.active_dataloader,
        "dataloader_references": data.dataloader_references,
        "plugin_kwargs": data.plugin_kwargs,
        "sync_gradients": data.sync_gradients,
        "_is_xla_gradients_synced": data.is_xla_gradients_synced,
    }


class GradientState:
    """The state that crosses batches; all instances show the same.

    Args:
        gradient_accumulation_plugin: How gradients accumulate; replaces what was set before. None leaves it.
    """

    _shared_state: ClassVar[SharedState] = SharedState(_collect)

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        data = current_gradient()
        data.is_initialized = True
        if gradient_accumulation_plugin is not None:
            data.plugin_kwargs = gradient_accumulation_plugin.to_dict()

    @property
    def _data(self) -> GradientData:
        return current_gradient()

    @staticmethod
    def is_initialized() -> bool:
        """Tell whether a `GradientState` has been built."""
        return current_gradient().is_initialized

    @property
    def initialized(self) -> bool:
        """Whether a `GradientState` has been built since the last reset."""
        return self._data.is_initialized

    @staticmethod
    def _reset_state() -> None:
        """Forget accumulation settings and active loaders."""
        reset_gradient()

    @property
    def sync_gradients(self) -> bool:
        """Whether the micro-batch at hand ends its accumulation window, so that ranks reduce and step."""
        return self._data.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, sync_gradients: bool) -> None:
        self._data.sync_gradients = sync_gradients

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The fields of the accumulation plugin, open to changes."""
        return self._data.plugin_kwargs

    @plugin_kwargs.setter
    def plugin_kwargs(self, plugin_kwargs: dict[str, Any]) -> None:
        self._data.plugin_kwargs = plugin_kwargs

    @property
    def num_steps(self) -> int:
        """Micro-batches per optimizer step."""
        return self._data.num_steps

    @property
    def adjust_scheduler(self) -> bool:
        """Whether the scheduler counts the micro-batches that did not step."""
        return self._data.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        """Whether the last batch of a loader always syncs."""
        return self._data.sync_with_dataloader

    @property
    def sync_each_batch(self) -> bool:
        """Whether gradients are reduced on every micro-batch."""
        return self._data.sync_each_batch

    @property
    def dataloader_references(self) -> list[Any]:
        """The loaders that are being read, the outermost first."""
        return self._data.dataloader_references

    @property
    def active_dataloader(self) -> Any | None:
        """The loader that is being read innermost, None outside of all loops."""
        return self._data.active_dataloader

    @property
    def in_dataloader(self) -> bool:
        """Whether any loader is being read."""
        return self._data.in_dataloader

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the batch at hand is the active loader's last."""
        return self._data.end_of_dataloader

    @property
    def remainder(self) -> int:
        """Real samples in the active loader's last global batch, -1 when unknown."""
        return self._data.remainder

    @property
    def is_xla_gradients_synced(self) -> bool:
        """Whether the gradients of this step have been reduced on XLA, which does so outside of autograd."""
        return self._data.is_xla_gradients_synced

    @is_xla_gradients_synced.setter
    def is_xla_gradients_synced(self, is_synced: bool) -> None:
        self._data.is_xla_gradients_synced = is_synced

    def _set_sync_gradients(self, sync_gradients: bool) -> None:
        self._data._set_sync_gradients(sync_gradients)

    def _add_dataloader(self, dataloader: Any) -> None:
        self._data._add_dataloader(dataloader)

    def _remove_dataloader(self, dataloader: Any) -> None:
        self._data._remove_dataloader(dataloader)

    def __repr__(self) -> str:
        return (
            f"Sync gradients: {self.sync_gradients}\n"
            f"At end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
            f"Gradient accumulation plugin: {self.plugin_kwargs}\n"
        )
