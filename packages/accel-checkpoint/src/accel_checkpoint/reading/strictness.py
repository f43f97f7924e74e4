"""What does not fit: an error, or where the caller accepts that, one warning each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accel_state.errors import AccelError, CheckpointError

MISFITS = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
"""What the `load_state_dict` of torch's and users' classes raises for a state that is not its own."""


@dataclass(frozen=True)
class Strictness:
    """Whether a misfit stops the loading."""

    is_strict: bool = True

    def complain(self, message: str) -> None:
        """Raise, or warn.

        Raises:
            CheckpointError: If strict.
        """
        if self.is_strict:
            raise CheckpointError(f"{message} Pass `strict=False` to load the rest.")
        warnings.warn(message, stacklevel=6)

    @contextmanager
    def loading(self, file_name: str, into: str) -> Iterator[None]:
        """Turn what loading a file's content into an object raises into a message that names both."""
        try:
            yield
        except AccelError as error:
            if self.is_strict:
                raise
            warnings.warn(str(error), stacklevel=4)
        except MISFITS as error:
            self._fail(file_name, into, error)

    def _fail(self, file_name: str, into: str, error: Exception) -> None:
        reason = error.args[0] if isinstance(error, KeyError) and error.args else error
        message = f"`{file_name}` does not fit {into}: {' '.join(str(reason).split()).rstrip('.')}."
        if self.is_strict:
            raise CheckpointError(f"{message} Pass `strict=False` to load the rest.") from error
        warnings.warn(message, stacklevel=6)
