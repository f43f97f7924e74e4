"""The commands of the umbrella, and the module paths of commands that users import from."""

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, {}, submodules=["config"])
