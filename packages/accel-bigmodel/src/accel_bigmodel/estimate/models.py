"""Models to be measured, made without weights from a name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from accel_bigmodel.skeleton import init_empty_weights
from accel_state.availability import is_timm_available, is_transformers_available
from accel_state.errors import ConfigError, NotAvailableError


def create_empty_model(
    model_name: str,
    library_name: str | None = None,
    trust_remote_code: bool = False,
    access_token: str | None = None,
) -> nn.Module:
    """Return a model on the meta device.

    Args:
        model_name: ``module:factory`` (something to import and call), a folder or ``config.json`` of transformers, or
            a name on the Hub.
        library_name: ``"transformers"`` or ``"timm"``; by default timm for names that begin with ``timm/``.
        trust_remote_code: Whether code from the Hub may run.
        access_token: For the Hub.

    Raises:
        ConfigError: If there is no such model.
        NotAvailableError: If the library is not installed.
    """
    if library_name is None and ":" in model_name and not Path(model_name).exists():
        return _from_factory(model_name)
    if library_name == "timm" or (library_name is None and model_name.startswith("timm/")):
        return _from_timm(model_name)
    return _from_transformers(model_name, trust_remote_code=trust_remote_code, token=access_token)


def add_timm_hub_prefix(model_name: str) -> str:
    """Return what timm calls a model of the Hub."""
    return f"hf-hub:{model_name}" if model_name.startswith("timm/") else model_name


def _from_factory(name: str) -> nn.Module:
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python -m` does
    try:
        factory: Any = importlib.import_module(module_name)
        for part in path.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"`{name}` cannot be imported: {error}. Write `module:factory`.") from error
    finally:
        sys.path.remove(here)
    with init_empty_weights():
        model = factory()
    if not isinstance(model, nn.Module):
        raise ConfigError(f"`{name}` made a {type(model).__name__}, not a torch module.")
    return model


def _from_timm(name: str) -> nn.Module:
    if not is_timm_available():
        raise NotAvailableError(
            f"`{name}` needs the package `timm`, which is not installed. Run `pip install timm`."
        )
    timm: Any = importlib.import_module("timm")
    with init_empty_weights():
        model: nn.Module = timm.create_model(add_timm_hub_prefix(name), pretrained=False)
    return model


def _from_transformers(name: str, *, trust_remote_code: bool, token: str | None) -> nn.Module:
    if not is_transformers_available():
        raise NotAvailableError(
            f"`{name}` needs the package `transformers`, which is not installed. Run `pip install transformers`, or "
            "name any model of your own as `module:factory`."
        )
    transformers: Any = importlib.import_module("transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, token=token
        )
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"There is no model `{name}` here, and none was found on the Hub: {error}"
        ) from error
    made = _architecture(transformers, config)
    with init_empty_weights():
        if made is not None:
            model: nn.Module = made(config)
        else:
            model = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
    return model


def _architecture(transformers: Any, config: Any) -> Any:
    """Return the class that the config names, if transformers has it: ``AutoModel`` would leave out its head."""
    names = getattr(config, "architectures", None) or [None]
    return getattr(transformers, names[0], None) if names[0] else None
