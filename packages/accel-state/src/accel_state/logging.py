"""Loggers that log on the main process only, or on all in order."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, MutableMapping
from typing import Any

from accel_state.environment import read
from accel_state.errors import ConfigError, StateError
from accel_state.runtime import current_runtime, has_runtime

#: The ``stacklevel`` of the caller: one more than in the standard library, for the frame of this module.
_CALLER = 2


class MultiProcessAdapter(logging.LoggerAdapter[logging.Logger]):
    """A logger whose calls take ``main_process_only`` and ``in_order`` in addition to the usual arguments.

    By default only process 0 logs. With ``main_process_only=False`` all do, in any order. With
    ``in_order=True`` all do in rank order: every process must then make the call, even if its logger's level
    discards the message, and waits for its turn. ``stacklevel`` counts as in Accelerate: 2, the default, shows the
    line that calls the logger, 3 the line that calls the function around it.

    Raises:
        StateError: If it is called before `Accelerator()` or `PartialState()`, since the main process is not known
            yet.
    """

    def __init__(self, logger: logging.Logger, extra: Mapping[str, object] | None = None) -> None:
        super().__init__(logger, extra)

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        """Log on the selected processes.

        Raises:
            StateError: If neither `Accelerator()` nor `PartialState()` has been constructed.
        """
        if not has_runtime():
            raise StateError(
                "The logger was used before it is known which process this is. "
                "Construct `Accelerator()` or `PartialState()` first."
            )
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs["stacklevel"] = max(_CALLER, kwargs.get("stacklevel", _CALLER))
        runtime = current_runtime()
        rank = runtime.topology.rank
        if main_process_only:
            turns = range(1) if rank == 0 else range(0)
        else:
            turns = range(runtime.topology.world_size) if in_order else range(rank, rank + 1)
        for turn in turns:
            if turn == rank and self.isEnabledFor(level):
                msg, kwargs = self.process(msg, kwargs)
                self.logger.log(level, msg, *args, **kwargs)
            if in_order and not main_process_only:
                runtime.wait_for_everyone()

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, Any]:
        """Add the adapter's ``extra`` to the call's, which wins."""
        if self.extra:
            kwargs["extra"] = {**self.extra, **(kwargs.get("extra") or {})}
        return msg, kwargs

    @functools.lru_cache(None)  # noqa: B019 -- loggers live as long as the process
    def warning_once(self, *args: Any, **kwargs: Any) -> None:
        """Log a warning the first time that it is called with these arguments, which must be hashable."""
        self.warning(*args, **{**kwargs, "stacklevel": max(_CALLER, kwargs.get("stacklevel", _CALLER)) + 1})


def get_logger(name: str, log_level: str | None = None) -> MultiProcessAdapter:
    """Return a logger that by default logs on the main process only.

    Args:
        name: The logger's name, usually ``__name__``.
        log_level: ``DEBUG``, ``INFO``, ``WARNING``, ``ERROR`` or ``CRITICAL``; None reads
            ``ACCELERATE_LOG_LEVEL`` and, if that is unset, keeps the level of the logger.

    Raises:
        ConfigError: If there is no such level.
    """
    logger = logging.getLogger(name)
    level = read("log_level") if log_level is None else log_level
    if level is not None:
        known = logging.getLevelNamesMapping()
        if str(level).upper() not in known:
            raise ConfigError(f"`log_level` must be one of {', '.join(known)}, got `{level}`.")
        logger.setLevel(str(level).upper())
    return MultiProcessAdapter(logger, {})
