"""The errors of all accel packages, each also the built-in that existing `except` clauses catch."""

from __future__ import annotations

from collections.abc import Iterable


class AccelError(Exception):
    """Base of every error that accel raises on purpose."""


class ConfigError(AccelError, ValueError):
    """A user-provided value (argument, variable, flag, config key) is wrong or contradicts another."""


class MissingFileError(ConfigError, FileNotFoundError):
    """A user-provided file or model does not exist."""


class NoAccessError(ConfigError, PermissionError):
    """A user-provided file or model may not be read."""


class NotAvailableError(AccelError, ImportError):
    """A package or a device is missing; the message describes how to get it."""


class UnreachableError(AccelError, ConnectionError):
    """A service cannot be reached."""


class StateError(AccelError, RuntimeError):
    """Something was used in the wrong order, or contradicts what has already been set up."""


class StateNotBuiltError(StateError, AttributeError):
    """An attribute of a state that has not been built, or was reset."""


class DistributedOperationException(AccelError):
    """The ranks called a collective with values that do not fit together."""


class CheckpointError(AccelError, RuntimeError):
    """A checkpoint is missing, incomplete, or does not match the objects it is loaded into."""


class LaunchError(AccelError, RuntimeError):
    """Processes could not be started, or one of them failed."""


class UnknownNameError(ConfigError, KeyError):
    """An unknown name; the message lists the known ones and the nearest."""

    @classmethod
    def of(cls, kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Build the message ``Unknown strategy `dpp`. Known: ddp, single. Did you mean `ddp`?``"""
        choices = sorted(known)
        listed = f"Known: {', '.join(choices)}." if choices else f"No {kind} is known."
        return cls(f"Unknown {kind} `{name}`. {listed}{did_you_mean(name, choices)}")

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would put quotes around the sentence.
        return str(self.args[0]) if self.args else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` Did you mean `x`?`` for the nearest known name, or an empty string when none is near."""
    import difflib

    by_lower = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return f" Did you mean `{by_lower[near[0]]}`?" if near else ""
