"""Finding out what is inside a model."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from accel_backends.unwrap import extract_model_from_parallel
from accel_state.errors import ConfigError, did_you_mean


def get_module_children_bottom_up(
    model: nn.Module, return_fqns: bool = False
) -> list[nn.Module] | list[tuple[str, nn.Module]]:
    """Return all modules of a model, each after the modules inside it, the model itself last.

    Args:
        model: Walked; a module at several places comes once, under its first name.
        return_fqns: Return pairs of the dotted name and the module.
    """
    found = _bottom_up("", model, set())
    return found if return_fqns else [module for _, module in found]


def _bottom_up(name: str, module: nn.Module, seen: set[nn.Module]) -> list[tuple[str, nn.Module]]:
    seen.add(module)
    found: list[tuple[str, nn.Module]] = []
    for child_name, child in module.named_children():
        if child not in seen:
            found += _bottom_up(f"{name}.{child_name}" if name else child_name, child, seen)
    return [*found, (name, module)]


def get_module_class_from_name(module: nn.Module, name: str) -> type[nn.Module] | None:
    """Return the class called ``name`` of the first module of a model, from the root down, that is of it.

    Args:
        module: The root of the search.
        name: Of the class, without its module: ``"LlamaDecoderLayer"``.

    Returns:
        The class, ``None`` if no module is of one with this name.
    """
    return next((type(inner) for inner in module.modules() if type(inner).__name__ == name), None)


def get_parameters_from_modules(
    modules: Iterable[nn.Module] | str | None, model: nn.Module, device: torch.device | str | int
) -> set[nn.Parameter]:
    """Return the parameters of some modules of a model, after moving these modules to ``device``.

    Args:
        modules: The modules, or a regular expression that matches their whole dotted names; None is none.
        model: Where names are looked up.
        device: Where modules go that nobody shards.

    Raises:
        ConfigError: If the expression matches no module.
    """
    chosen = modules_by_name(modules, model) if isinstance(modules, str) else list(modules or ())
    for module in chosen:
        module.to(device)
    return {parameter for module in chosen for parameter in module.parameters()}


def modules_by_name(pattern: str, model: nn.Module) -> list[nn.Module]:
    """Return the modules whose whole dotted name a regular expression matches.

    Raises:
        ConfigError: If there is none.
    """
    named = dict(model.named_modules())
    found = [module for name, module in named.items() if re.fullmatch(pattern, name)]
    if not found:
        raise ConfigError(
            f"`{pattern}` matches the whole name of no module of `{type(model).__name__}`."
            f"{did_you_mean(pattern, named)}"
        )
    return found


def is_peft_model(model: nn.Module) -> bool:
    """Whether a model, taken out of what it was wrapped in to be trained, is one of the package ``peft``."""
    peft = sys.modules.get("peft")  # a model of a package that nobody has imported cannot be here
    return peft is not None and isinstance(extract_model_from_parallel(model), peft.PeftModel)


def model_has_dtensor(model: nn.Module) -> bool:
    """Whether a parameter of a model is spread over processes as a ``DTensor``."""
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def get_model_tp_size(model: nn.Module) -> int | None:
    """Return over how many processes transformers spread the layers of a model it loaded, None if it did not."""
    model = extract_model_from_parallel(model)
    size: int | None = getattr(model, "tp_size", None)
    if size is None:  # transformers 5 records it in the config, which is a dict once it was read from a file
        settings: Any = getattr(getattr(model, "config", None), "distributed_config", None)
        size = settings.get("tp_size") if isinstance(settings, dict) else getattr(settings, "tp_size", None)
    return size
