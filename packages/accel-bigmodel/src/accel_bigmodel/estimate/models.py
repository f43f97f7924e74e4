"""Build a model without weights from its name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from accel_bigmodel.estimate.hub import verify_on_hub
from accel_bigmodel.skeleton import init_empty_weights
from accel_checkpoint.formats.torch_files import DAMAGE
from accel_state.errors import (
    ConfigError,
    MissingFileError,
    NoAccessError,
    NotAvailableError,
    UnreachableError,
    did_you_mean,
)


def create_empty_model(
    model_name: str,
    library_name: str | None = None,
    trust_remote_code: bool = False,
    access_token: str | None = None,
) -> nn.Module:
    """Return a model on the meta device.

    Args:
        model_name: ``module:factory`` (a callable to import), a folder or ``config.json`` of transformers, a name
            that timm knows (``timm/resnet50``), or the name of a model on the Hub.
        library_name: ``"transformers"`` or ``"timm"``; by default timm for names that begin with ``timm/``, otherwise
            the library that the Hub names.
        trust_remote_code: Whether code from the Hub may run.
        access_token: Access token of the Hub.

    Raises:
        ConfigError: If the model does not exist, or requires a login.
        NotAvailableError: If the library is not installed, or the Hub is needed and cannot be reached.
    """
    if Path(model_name).exists():
        return _from_transformers(model_name, trust_remote_code=trust_remote_code)
    if library_name is None and ":" in model_name:
        return _from_factory(model_name)
    if library_name == "timm" or (library_name is None and model_name.startswith("timm/")):
        return _from_timm(model_name, token=access_token)
    return _from_hub(model_name, library_name, trust_remote_code=trust_remote_code, token=access_token)


def add_timm_hub_prefix(model_name: str) -> str:
    """Return the name by which timm finds a model on the Hub."""
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
        raise ConfigError(
            f"`{name}` made a {type(model).__name__}, not a torch module. "
            "Name a function that returns a `torch.nn.Module`."
        )
    return model


def _from_timm(name: str, *, token: str | None) -> nn.Module:
    timm = _imported("timm", name)
    known = name.removeprefix("timm/")
    # A model that timm defines needs no network: the Hub would only provide its weights.
    if not timm.is_model(known):
        known = add_timm_hub_prefix(name)
        if known == name:
            raise ConfigError(f"timm has no model `{name}`.{did_you_mean(name, timm.list_models())}")
        _refuse_missing(name, verify_on_hub(name, token))
    return _made_by_timm(timm, known)


def _made_by_timm(timm: Any, name: str) -> nn.Module:
    with init_empty_weights():
        model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def _from_hub(name: str, library: str | None, *, trust_remote_code: bool, token: str | None) -> nn.Module:
    try:
        info = verify_on_hub(name, token)
    except (NotAvailableError, UnreachableError) as unreachable:
        try:
            return _from_transformers(name, trust_remote_code=trust_remote_code, is_cached=True)
        except ConfigError:
            raise unreachable from None
    _refuse_missing(name, info)
    if library is None and getattr(info, "library_name", None) == "timm":
        return _made_by_timm(_imported("timm", name), f"hf-hub:{name}")
    return _from_transformers(name, trust_remote_code=trust_remote_code, token=token)


def _refuse_missing(name: str, info: Any) -> None:
    if info == "repo":
        raise MissingFileError(
            f"There is no model `{name}`, neither as a folder here nor on the Hub. Check the name; a private model "
            "requires a login (`hf auth login`)."
        )
    if info == "gated":
        raise NoAccessError(
            f"`{name}` is gated: accept its terms on the Hub, log in (`hf auth login`), and try again."
        )


def _from_transformers(
    name: str, *, trust_remote_code: bool, token: str | None = None, is_cached: bool = False
) -> nn.Module:
    transformers = _imported("transformers", name)
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, token=token, local_files_only=is_cached
        )
        made = _architecture(transformers, config)
        with init_empty_weights():
            if made is not None:
                model: nn.Module = made(config)
            else:
                model = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, *DAMAGE) as error:
        raise ConfigError(
            f"`{name}` has no config that transformers can read: {str(error) or type(error).__name__}. "
            "Name a model of transformers, or give one of your own as `module:factory`."
        ) from error
    return model


def _imported(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except ModuleNotFoundError as error:
        if error.name != library:
            raise _broken(library, name, error) from error
        raise NotAvailableError(
            f"`{name}` needs the package `{library}`, which is not installed. Run `pip install {library}`, or give "
            "a model of your own as `module:factory`."
        ) from error
    except (ImportError, RuntimeError) as error:  # for example a torchvision built for another torch
        raise _broken(library, name, error) from error


def _broken(library: str, name: str, error: Exception) -> NotAvailableError:
    return NotAvailableError(
        f"`{name}` needs the package `{library}`, which is installed but cannot be imported: {error}. Install what is "
        "missing, built for this torch."
    )


def _architecture(transformers: Any, config: Any) -> Any:
    """Return the class that the config names, if transformers has it; ``AutoModel`` would omit the head."""
    names = getattr(config, "architectures", None) or [None]
    return getattr(transformers, names[0], None) if names[0] else None
