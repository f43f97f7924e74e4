"""`GradientState`: whether gradients sync now, how they accumulate, and which loader is being read."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler
from accel_state.user_warnings import warn_user


class SharedState:
    """The `_shared_state` of a state class: a new dict of its values at each access, empty if there is no state."""

    def __init__(self, collect: Callable[[], dict[str, Any]]) -> None:
        self._collect = collect

    def __get__(self, instance: object, owner: type | None = None) -> dict[str, Any]:
        return self._collect()


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """Settings of gradient accumulation.

    Args:
        num_steps: Micro-batches per optimizer step; None leaves it to the `Accelerator`.
        adjust_scheduler: Add the micro-batches that did not step to torch's count of scheduler steps;
            otherwise torch warns about a scheduler stepped before its optimizer. The learning rate follows optimizer
            steps in both cases: write schedules in optimizer steps.
        sync_with_dataloader: Always step on the last batch of a loader, even within a window.
        sync_each_batch: Reduce gradients on every micro-batch: slower, but sharded engines need less memory.

    Raises:
        ConfigError: If ``num_steps`` is below 1.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        if self.num_steps is not None and self.num_steps < 1:
            raise ConfigError(f"`num_steps` must be at least 1, got {self.num_steps}.")


@dataclass(slots=True, eq=False)
class Reading:
    """A loader that is being read. Times are of the clock of the `GradientState`."""

    # Weak, so that a loop left by `break` keeps neither its loader nor the loader's claim to be active.
    loader: weakref.ref[Any]
    is_inner: bool  # started in the loop over another loader
    started: int  # a loader that is cycled: for the first time
    latest: int  # when its current batch was read


class GradientState:
    """The state that crosses batches. There is one per process, and every call returns it.

    Args:
        gradient_accumulation_plugin: How gradients accumulate; replaces what was set before. None leaves it.

    Attributes:
        sync_gradients: Whether the current micro-batch ends its accumulation window, so that ranks reduce and step.
        plugin_kwargs: The fields of the accumulation plugin that differ from the defaults, open to changes.
        is_xla_gradients_synced: Whether the gradients of this step have been reduced on XLA, which does so outside
            of autograd.
        joins_uneven_inputs: Whether the current loop is within `join_uneven_inputs`.
        initialized: Whether a `GradientState` has been constructed since the last reset.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_ended",
        "_loaders",
        "_micro_batch",
        "initialized",
        "is_xla_gradients_synced",
        "joins_uneven_inputs",
        "plugin_kwargs",
        "sync_gradients",
    )
    sync_gradients: bool
    plugin_kwargs: dict[str, Any]
    is_xla_gradients_synced: bool
    joins_uneven_inputs: bool
    initialized: bool
    _loaders: list[Reading]
    #: The reading that ended last, and when.
    _ended: tuple[Reading, int] | None
    #: Counts loaders started, batches read and micro-batches; and its value at the latest micro-batch.
    _clock: int
    _micro_batch: int

    _shared_state: ClassVar[SharedState] = SharedState(lambda: _attributes(current_gradient()))

    def __new__(cls, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> GradientState:
        return _of_this_process

    def __init__(self, gradient_accumulation_plugin: GradientAccumulationPlugin | None = None) -> None:
        self.initialized = True
        if gradient_accumulation_plugin is not None:
            given = gradient_accumulation_plugin
            values = ((field, getattr(given, field.name)) for field in fields(given))
            self.plugin_kwargs = {field.name: value for field, value in values if value != field.default}

    @staticmethod
    def is_initialized() -> bool:
        """Return whether a `GradientState` has been constructed since the last reset."""
        return _of_this_process.initialized

    @staticmethod
    def _reset_state() -> None:
        """Forget accumulation settings and active loaders."""
        _reset(_of_this_process)

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
        return [loader for reading in self._loaders if (loader := reading.loader()) is not None]

    @dataloader_references.setter
    def dataloader_references(self, loaders: Iterable[Any]) -> None:
        self._loaders = []
        for loader in loaders:
            if loader is not None:
                self._add_dataloader(loader)

    @property
    def active_dataloader(self) -> Any | None:
        """The loader that the innermost loop goes over, None outside of all loops.

        A loader that is read in the same loop, such as the second one of a `zip`, is not active.
        """
        return self._loader_of_loop()

    def _loader_of_loop(self, *, since: int | None = None) -> Any | None:
        """Return the outermost loader read since the last one was started, or since ``since`` if that is earlier."""
        self._loaders = [reading for reading in self._loaders if reading.loader() is not None]
        if len(self._loaders) < 2:
            return self._loaders[0].loader() if self._loaders else None
        last = max(self._loaders, key=lambda reading: reading.latest)
        bound = last.started if since is None else min(last.started, since)
        read = [reading for reading in self._loaders if reading is last or reading.latest > bound]
        return next((reading for reading in read if not reading.is_inner), read[0]).loader()

    @property
    def in_dataloader(self) -> bool:
        """Whether any loader is being read."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the current batch is the active loader's last; False outside of all loops."""
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

    def _begin_micro_batch(self) -> Any | None:
        """Count a micro-batch; return the loader whose last batch ends its window, None outside of all loops."""
        loader = self._loader_of_loop(since=self._micro_batch)
        self._clock += 1
        self._micro_batch = self._clock
        return loader

    def _add_dataloader(self, dataloader: Any) -> Reading:
        """Start to read ``dataloader``; if it is being read already, it moves to the top."""
        self._loaders = [reading for reading in self._loaders if reading.loader() not in (None, dataloader)]
        reading, when = self._ended or (None, 0)
        if reading is None or reading.loader() is not dataloader or when != self._clock:
            is_inner = any(not each.is_inner for each in self._loaders)
            reading = Reading(weakref.ref(dataloader), is_inner, started=self._clock + 1, latest=0)
        self._loaders.append(reading)
        self._note_batch(reading)
        return reading

    def _note_batch(self, reading: Reading) -> None:
        """Note that the next batch of a loader has been read."""
        self._clock += 1
        reading.latest = self._clock

    def _remove_dataloader(self, dataloader: Any) -> None:
        """End the reading of ``dataloader``; nothing happens if it is not being read."""
        for reading in [each for each in self._loaders if each.loader() is dataloader]:
            self._loaders.remove(reading)
            is_early = self._ended is not None and self._ended[1] == self._clock == reading.latest
            is_within = not (self.sync_gradients or dataloader.end_of_dataloader)
            if is_early and is_within and self.sync_with_dataloader:
                warn_user(
                    "The loop over a loader ended within an accumulation window, because a loader that is read after "
                    "it in each iteration ended. Windows end with the loader that is read first, so this window "
                    "continues in the next loop. In `zip`, put the shortest loader first."
                )
            self._ended = reading, self._clock

    def __repr__(self) -> str:
        return (
            f"Sync gradients: {self.sync_gradients}\n"
            f"At end of current dataloader: {self.end_of_dataloader}\n"
            f"Extra samples added: {self.remainder}\n"
            f"Gradient accumulation plugin: {self.plugin_kwargs}\n"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # An unpickled loader or optimizer gets the state of its process.
        return current_gradient, ()


def current_gradient() -> GradientState:
    """Return the gradient state of this process, which exists from the start: loaders work without any other."""
    return _of_this_process


def _reset(state: GradientState) -> None:
    # In place, for loaders, optimizers and schedulers, which keep it.
    state.sync_gradients = True
    state.plugin_kwargs = {}
    state.is_xla_gradients_synced = False
    state.joins_uneven_inputs = False
    state.initialized = False
    state._loaders = []
    state._ended, state._clock, state._micro_batch = None, 0, 0


def _attributes(state: GradientState) -> dict[str, Any]:
    if not state.initialized:
        return {}
    return {
        "active_dataloader": state.active_dataloader,
        "dataloader_references": state.dataloader_references,
        "plugin_kwargs": state.plugin_kwargs,
        "sync_gradients": state.sync_gradients,
        "_is_xla_gradients_synced": state.is_xla_gradients_synced,
    }


_of_this_process: GradientState = object.__new__(GradientState)
_reset(_of_this_process)
