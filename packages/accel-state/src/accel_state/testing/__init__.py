"""Decorators, test cases and commands for tests of training scripts, by the names that Accelerate gives them."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
