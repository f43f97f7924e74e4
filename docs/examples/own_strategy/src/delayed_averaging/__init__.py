"""A strategy for accel that averages all gradients of a step by one all-reduce."""

from delayed_averaging.strategy import DelayedAveraging, DelayedAveragingPlugin

__all__ = ["DelayedAveraging", "DelayedAveragingPlugin"]
