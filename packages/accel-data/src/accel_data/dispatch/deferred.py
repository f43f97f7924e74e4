"""An error that is raised when its time has come."""

from __future__ import annotations

from types import TracebackType


class DeferredError:
    """Keep an error that is raised in a ``with`` block, for `raise_now`."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> DeferredError:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error
            return True
        return False

    def raise_now(self) -> None:
        """Raise the error, if there is one."""
        if self.error is not None:
            raise self.error
