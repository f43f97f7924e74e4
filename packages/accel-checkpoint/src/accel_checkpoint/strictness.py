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
        """Report an error in the body, which loads a file into an object, as a mismatch unless it is one of ours.

        Raises:
            AccelError: If strict, or the file is damaged; otherwise warns.
        """
        try:
            yield
        except DamagedFileError:
            raise
        except AccelError as error:
            if self.is_strict:
                raise
            warn_user(str(error), main_process_only=False)
        except MISMATCH_ERRORS as error:
            reason = error.args[0] if isinstance(error, KeyError) and error.args else error
            self.report(f"`{file_name}` does not fit {into}: {' '.join(str(reason).split()).rstrip('.')}.")
