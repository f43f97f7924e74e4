"""How models are compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accel_state.enums import DynamoBackend, DynamoBackendName
from accel_state.environment import environ
from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler


@dataclass
class TorchDynamoPlugin(KwargsHandler):
    """Settings of `torch.compile`. What is None is read from ``ACCELERATE_DYNAMO_*`` at construction.

    Attributes:
        backend: The compiler, a member of `DynamoBackend` or its string in any case; NO compiles nothing.
        mode: "default", "reduce-overhead", "max-autotune", …; left to torch where ``options`` are given.
        fullgraph: Whether a model that cannot be captured as one graph is an error.
        dynamic: Whether shapes are traced as variables; None lets torch find out.
        options: Options of the backend.
        disable: Makes `torch.compile` do nothing, for tests.
        use_regional_compilation: Whether repeated blocks are compiled on their own, once for all of them.

    Raises:
        ConfigError: If the backend is unknown, or both ``mode`` and ``options`` are given.
    """

    backend: DynamoBackend | DynamoBackendName | None = None
    mode: str | None = None
    fullgraph: bool | None = None
    dynamic: bool | None = None
    options: Any = None
    disable: bool = False
    use_regional_compilation: bool | None = None

    def __post_init__(self) -> None:
        if self.mode is not None and self.options is not None:
            raise ConfigError(
                "`mode` and `options` cannot both be given: a mode is a set of options. Drop one."
            )
        self.backend = DynamoBackend(str(self._given_or("backend", "dynamo_backend")).upper())
        if self.options is None:
            self.mode = self._given_or("mode", "dynamo_mode")
        self.fullgraph = self._given_or("fullgraph", "dynamo_use_fullgraph")
        self.use_regional_compilation = self._given_or(
            "use_regional_compilation", "dynamo_use_regional_compilation"
        )
        if self.dynamic is None and environ.is_set("dynamo_use_dynamic"):
            self.dynamic = environ.read("dynamo_use_dynamic")

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, the backend by the lower-case name that `torch.compile` knows."""
        return {**super().to_dict(), "backend": str(self.backend).lower()}

    def to_kwargs(self) -> dict[str, Any]:
        """Return the arguments of `torch.compile` that differ from its defaults."""
        arguments = super().to_kwargs()
        arguments.pop("use_regional_compilation", None)
        return {name: value for name, value in arguments.items() if value is not None}

    def _given_or(self, field: str, setting: str) -> Any:
        value = getattr(self, field)
        return environ.read(setting) if value is None else value
