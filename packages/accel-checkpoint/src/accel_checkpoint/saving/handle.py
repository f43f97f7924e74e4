"""A save that goes on while the loop trains."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

logger = logging.getLogger(__name__)


class SaveHandle:
    """A save under way.

    It leaves the processors to the training, and so takes many times as long beside a loop that never lets them
    idle; it hurries as soon as somebody waits for it, be it `wait`, `exception`, the next save or the end of the
    program.

    Args:
        finish: Does the rest of the save and returns the folder.
        target: Where the checkpoint will be.
        hurry: Called when somebody waits.
    """

    def __init__(
        self, finish: Callable[[], Path], *, target: Path, hurry: Callable[[], None] = lambda: None
    ) -> None:
        self.target = target
        self._finish = finish
        self._hurry = hurry
        self._error: BaseException | None = None
        # No daemon: a normal end of the program waits for it.
        self._thread = threading.Thread(target=self._run, name=f"save-{target.name}", daemon=False)
        self._thread.start()

    def done(self) -> bool:
        """Whether the save has ended, well or not; never blocks."""
        return not self._thread.is_alive()

    def wait(self, timeout_s: float | None = None) -> Path:
        """Return the folder once the checkpoint is there.

        Args:
            timeout_s: How long to wait at most.

        Raises:
            CheckpointError: If the save failed, on any rank.
            TimeoutError: If it is still under way.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self.target

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Return why the save failed, None if it did not; waits for its end.

        Raises:
            TimeoutError: If it is still under way after ``timeout_s``.
        """
        self._hurry()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(
                f"The checkpoint `{self.target}` is still being written after {timeout_s:g} s."
            )
        if self in _Untold.handles:
            _Untold.handles.remove(self)
        return self._error

    def settle(self) -> None:
        """Wait, and raise an error that nobody has been told yet."""
        self._hurry()
        self._thread.join()
        if self in _Untold.handles:
            self.wait()

    def _run(self) -> None:
        try:
            self._finish()
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits, whatever it is)
            self._error = error
            _Untold.handles.append(self)


class _Untold:
    """Saves that failed and whose end nobody has asked for."""

    handles: ClassVar[list[SaveHandle]] = []


@atexit.register
def _tell_at_exit() -> None:
    # Python waits for the threads before it comes here.
    for handle in _Untold.handles:
        logger.error("Saving `%s` behind the loop failed: %s", handle.target, handle._error)
