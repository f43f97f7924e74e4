"""Mismatches between a checkpoint and the objects that it is loaded into: errors, or warnings if not strict."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from accel_checkpoint.files import DamagedFileError
from accel_state.errors import AccelError, CheckpointError
from accel_state.user_warnings import warn_user

MISMATCH_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    AssertionError,
)
"""The errors that `load_state_dict` of torch's and users' classes raises for a state that does not fit."""
LOADING_ERRORS = (AccelError, *MISMATCH_ERRORS)


@dataclass(frozen=True)
class Strictness:
    """Whether a mismatch is an error or a warning."""

    is_strict: bool = True

    def report(self, message: str) -> None:
        """Report a mismatch.

        Raises:
            CheckpointError: If strict; otherwise warns.
        """
        if self.is_strict:
            raise CheckpointError(f"{message} Pass `strict=False` to load the rest.")
        warn_user(message, main_process_only=False)

    @contextmanager
    def loading(self, file_name: str, into: str) -> Iterator[None]:
        """Report errors in the body as `report_error` does."""
        try:
            yield
        except LOADING_ERRORS as error:
            self.report_error(error, file_name=file_name, into=into)

    def report_error(self, error: Exception, *, file_name: str, into: str) -> None:
        """Report an error that loading a file into an object raised, as a mismatch unless it is one of ours.

        Raises:
            AccelError: If strict, or the file is damaged; otherwise warns.
        """
        if not isinstance(error, AccelError):
            reason = error.args[0] if isinstance(error, KeyError) and error.args else error
            self.report(f"`{file_name}` does not fit {into}: {' '.join(str(reason).split()).rstrip('.')}.")
        elif self.is_strict or isinstance(error, DamagedFileError):
            raise error
        else:
            warn_user(str(error), main_process_only=False)
