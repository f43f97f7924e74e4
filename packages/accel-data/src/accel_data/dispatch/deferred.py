"""An error that is kept and raised later."""

from __future__ import annotations

from types import TracebackType


class DeferredError:
    """Keep the error of a ``with`` block until `raise_now`."""

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
