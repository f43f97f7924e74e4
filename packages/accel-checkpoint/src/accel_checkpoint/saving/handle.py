"""A handle on a save that runs in the background."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

logger = logging.getLogger(__name__)
_unreported: list[SaveHandle] = []
"""Failed saves whose error no caller has received."""


class SaveHandle:
    """A save in the background, once it is started. The next save, and the end of the program, wait for it.

    Args:
        finish: Completes the save and returns the folder.
        target: Final path of the checkpoint.
    """

    def __init__(self, finish: Callable[[], Path], *, target: Path) -> None:
        self.target = target
        self._error: BaseException | None = None
        self._has_ended = False
        self._claim: dict[str, str] = {}
        # Not a daemon: the interpreter waits for it at exit.
        self._thread = threading.Thread(
            target=self._run, args=(finish,), name=f"save-{target.name}", daemon=False
        )

    def start(self) -> Self:
        """Start the thread. After an interrupt in here, only `abandon` shows whether it runs."""
        self._thread.start()
        return self

    def abandon(self) -> bool:
        """Prevent the save unless its thread has started; return whether it is prevented."""
        return self._is_claimed_by("caller")

    def _is_claimed_by(self, owner: str) -> bool:
        """Claim the save, unless another owner has; atomic for threads and interrupts."""
        return self._claim.setdefault("owner", owner) == owner

    def done(self) -> bool:
        """Whether the save has ended, successfully or not; never blocks."""
        return self._has_ended

    def wait(self, timeout_s: float | None = None) -> Path:
        """Wait until the checkpoint is committed, and return its folder.

        Args:
            timeout_s: How long to wait; None waits without a limit.

        Raises:
            CheckpointError: If the save failed on any rank.
            TimeoutError: If the save is still running after ``timeout_s``.
        """
        error = self.exception(timeout_s)
        if error is not None:
            raise error
        return self.target

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait for the save to end, and return its error, or None if it succeeded.

        Raises:
            TimeoutError: If the save is still running after ``timeout_s``.
        """
        self._join(timeout_s)
        if not self._has_ended:
            raise TimeoutError(
                f"The checkpoint `{self.target}` is still being written after {timeout_s:g} s. "
                "Call `wait()` again, with a longer limit or none."
            )
        if self in _unreported:
            _unreported.remove(self)
        return self._error

    def settle(self) -> None:
        """Wait for the save to end, and raise its error unless a caller has already received it."""
        self._join()
        if self in _unreported:
            self.wait()

    def _run(self, finish: Callable[[], Path]) -> None:
        try:
            if self._is_claimed_by("thread"):
                finish()
        except BaseException as error:  # noqa: BLE001 (raised in the thread that waits)
            self._error = error
            _unreported.append(self)
        finally:
            self._has_ended = True

    def _join(self, timeout_s: float | None = None) -> None:
        # Not an `Event`, which an interrupt in its `wait` can leave locked.
        while not self._has_ended and not self._thread.is_alive():
            time.sleep(0.001)  # an interrupt in `start` arrived before the thread counts as started
        self._thread.join(timeout_s)


@atexit.register
def _log_unreported_failures() -> None:
    # Python joins the threads before it runs this.
    for handle in _unreported:
        logger.error("Saving `%s` in the background failed: %s", handle.target, handle._error)
