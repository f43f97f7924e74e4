"""Errors of this package."""

from __future__ import annotations

from accel_state.errors import AccelError, ConfigError


class TrackerError(AccelError, RuntimeError):
    """A tracker failed while it was writing; the cause is what it raised."""


class IncompleteTrackerError(ConfigError, NotImplementedError):
    """A custom tracker lacks something that every tracker must have."""
