"""Errors of this package."""

from __future__ import annotations

from accel_state.errors import AccelError, ConfigError


class TrackerError(AccelError, RuntimeError):
    """A tracker failed to write; the cause is its exception."""


class IncompleteTrackerError(ConfigError, NotImplementedError):
    """A custom tracker lacks a required attribute."""
