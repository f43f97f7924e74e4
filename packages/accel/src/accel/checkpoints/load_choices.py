"""Which parts of a checkpoint to load, by the names that DeepSpeed gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from accel_state.errors import ConfigError

_NAMES = ("load_module_strict", "load_optimizer_states", "load_lr_scheduler_states", "load_module_only")


@dataclass(frozen=True, slots=True)
class LoadChoices:
    """Which parts of a checkpoint to load.

    Attributes:
        optimizers: Whether to load the states of optimizers.
        schedulers: Whether to load the states of schedulers.
        strict_models: Whether weights that are missing or left over are an error; otherwise a warning.
    """

    optimizers: bool = True
    schedulers: bool = True
    strict_models: bool = True

    @classmethod
    def of(cls, load_kwargs: Mapping[str, Any] | None, others: Mapping[str, Any]) -> Self:
        """Return the choices in the arguments of `load_state`.

        Raises:
            ConfigError: If an argument would have no effect, or would allow unpickling; names it.
        """
        given = dict(load_kwargs or {})
        if given.pop("weights_only", True) is not True:
            raise ConfigError(
                "`weights_only=False` is not supported: a checkpoint could run code. Leave it out."
            )
        given.pop("map_location", None)
        unknown = sorted({*given, *others} - {"map_location", *_NAMES})
        if unknown:
            raise ConfigError(
                f"`load_state` knows no argument `{unknown[0]}`. Known: verify, strict, restore_loaders, "
                f"missing_ok, load_kwargs, {', '.join(_NAMES)}."
            )
        only_models = bool(others.get("load_module_only", False))
        return cls(
            optimizers=bool(others.get("load_optimizer_states", True)) and not only_models,
            schedulers=bool(others.get("load_lr_scheduler_states", True)) and not only_models,
            strict_models=bool(others.get("load_module_strict", True)),
        )
