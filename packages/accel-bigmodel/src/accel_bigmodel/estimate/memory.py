"""Bytes to load and train a model that is given by name, and the bytes of its KV cache."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from accel_bigmodel.dtypes import dtype_byte_size
from accel_bigmodel.planning.sizes import maximum_sizes
from accel_bigmodel.skeleton import init_empty_weights
from accel_checkpoint.formats.torch_files import DAMAGE
from accel_state.errors import (
    ConfigError,
    MissingFileError,
    NoAccessError,
    NotAvailableError,
    UnknownNameError,
    UnreachableError,
    did_you_mean,
)


def estimate(
    model: nn.Module,
    *,
    dtypes: Sequence[str],
    strategy: str | None = None,
    num_processes: int = 1,
    batch_size: int | None = None,
    sequence_length: int = 512,
) -> dict[str, Any]:
    """Return the bytes of a model by dtype, and on request the bytes of training and of the KV cache.

    Args:
        model: A model on the meta device.
        dtypes: The dtypes to load it in.
        strategy: As for `training_bytes`; ``None`` skips training.
        num_processes: Number of training processes.
        batch_size: Sequences in the KV cache; ``None`` skips it.
        sequence_length: Tokens per sequence.
    """
    result: dict[str, Any] = {"dtypes": {dtype: model_bytes(model, dtype) for dtype in dtypes}}
    if strategy is not None:
        full = model_bytes(model, "float32")
        trained = sum(p.numel() * 4 for p in model.parameters() if p.requires_grad)
        per_process = training_bytes(
            strategy, weights=full["total"], trained=trained, largest_layer=full["largest_layer"],
            num_processes=num_processes,
        )  # fmt: skip
        result["training"] = {"strategy": strategy, "num_processes": num_processes, **per_process}
    if batch_size is not None:
        num_elements = kv_cache_elements(getattr(model, "config", None), batch_size, sequence_length)
        caches = {dtype: int(num_elements * dtype_byte_size(dtype)) for dtype in dtypes if num_elements}
        result["running"] = {"batch_size": batch_size, "sequence_length": sequence_length, "kv_cache": caches}
    return result


def model_bytes(model: nn.Module, dtype: str) -> dict[str, int]:
    """Return the bytes of the largest layer, of the model, and of training it with Adam."""
    total, (largest, names) = maximum_sizes(model, dtype)
    return {"largest_layer": largest if names else total, "total": total, "training_adam": 4 * total}


def estimate_training_usage(
    bytes: int,  # noqa: A002
    mixed_precision: str,
    msamp_config: str | None = None,
) -> dict[str, float]:
    """Return the bytes of a training step with Adam.

    Args:
        bytes: Size of the model in float32.
        mixed_precision: ``"float32"``, ``"float16"`` or ``"bfloat16"``. For other dtypes, which cannot be
            trained, every value is -1.
        msamp_config: Not used.

    Returns:
        ``model``, ``optimizer``, ``gradients``, and ``step``, the peak of all together.
    """
    if mixed_precision == "float32":
        return {"model": bytes, "optimizer": bytes * 2, "gradients": bytes, "step": bytes * 4}
    if mixed_precision in ("float16", "bfloat16"):
        return {"model": bytes, "optimizer": bytes * 2, "gradients": bytes * 1.5, "step": bytes * 2}
    return dict.fromkeys(("model", "optimizer", "gradients", "step"), -1)


def training_bytes(
    strategy: str, *, weights: int, trained: int, largest_layer: int, num_processes: int
) -> dict[str, int]:
    """Return the bytes of each process during training with Adam, activations excluded.

    Args:
        strategy: ``ddp``, ``fsdp``, ``zero1``, ``zero2``, ``zero3`` or ``offload`` (optimizer state on the host).
        weights: Bytes of parameters and buffers.
        trained: Bytes of parameters that get gradients.
        largest_layer: Bytes of the largest layer, which is gathered for its computation and updated with temporary
            memory of its size.
        num_processes: Number of data-parallel processes.

    Returns:
        ``parameters``, ``gradients``, ``optimizer`` and ``working``, their ``total`` on the device, and ``host``.

    Raises:
        ConfigError: If ``num_processes`` is less than 1.
        UnknownNameError: If the strategy is unknown.
    """
    if num_processes < 1:
        raise ConfigError(f"`num_processes` must be at least 1, not {num_processes}.")

    def share(size: int) -> int:
        return -(-size // num_processes)

    moments, is_single = 2 * trained, num_processes == 1
    # The current layer and the next one are gathered, and the gradient of one layer is unsharded.
    gathered = largest_layer if is_single else 3 * largest_layer
    sharded = (share(weights), share(trained), share(moments), gathered)
    strategies = {
        # DDP copies the gradients into buckets for the all-reduce.
        "ddp": (weights, trained if is_single else 2 * trained, moments, largest_layer),
        "fsdp": sharded,
        "zero1": (weights, trained, share(moments), largest_layer),
        "zero2": (weights, share(trained), share(moments), 2 * largest_layer),
        "zero3": sharded,
        "offload": (weights, trained, 0, largest_layer),
    }
    if strategy not in strategies:
        raise UnknownNameError.of("strategy", strategy, strategies)
    parts = dict(zip(("parameters", "gradients", "optimizer", "working"), strategies[strategy], strict=True))
    host = share(moments + trained) if strategy == "offload" else 0
    return {**parts, "host": host, "total": sum(parts.values())}


def kv_cache_elements(config: Any, batch_size: int, sequence_length: int) -> int:
    """Return the number of elements in the KV cache of a batch, 0 if the config describes no attention.

    Args:
        config: The config of a transformers model.
        batch_size: Number of sequences.
        sequence_length: Tokens per sequence, prompt and completion together.
    """
    config = getattr(config, "text_config", config)
    layers = getattr(config, "num_hidden_layers", None) or getattr(config, "n_layer", None)
    heads = getattr(config, "num_attention_heads", None) or getattr(config, "n_head", None)
    width = getattr(config, "hidden_size", None) or getattr(config, "n_embd", None)
    if not layers or not heads or not width:
        return 0
    head_dim = getattr(config, "head_dim", None) or width // heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return int(2 * layers * kv_heads * head_dim * batch_size * sequence_length)


def create_empty_model(
    model_name: str,
    library_name: str | None = None,
    trust_remote_code: bool = False,
    access_token: str | None = None,
) -> nn.Module:
    """Return a model on the meta device.

    Args:
        model_name: ``module:factory`` (a callable to import), a folder or ``config.json`` of transformers, a name
            of timm (``timm/resnet50``), or the name of a model on the Hub.
        library_name: ``"transformers"`` or ``"timm"``. Default: timm for names that start with ``timm/``, else the
            library in the model's metadata on the Hub.
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
    """Return timm's name for a model on the Hub."""
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
            "Pass a function that returns a `torch.nn.Module`."
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
        _hub_info(name, token)
    return _made_by_timm(timm, known)


def _made_by_timm(timm: Any, name: str) -> nn.Module:
    with init_empty_weights():
        model: nn.Module = timm.create_model(name, pretrained=False)
    return model


def _from_hub(name: str, library: str | None, *, trust_remote_code: bool, token: str | None) -> nn.Module:
    try:
        info = _hub_info(name, token)
    except (NotAvailableError, UnreachableError) as unreachable:
        try:
            return _from_transformers(name, trust_remote_code=trust_remote_code, is_cached=True)
        except ConfigError:
            raise unreachable from None
    if library is None and getattr(info, "library_name", None) == "timm":
        return _made_by_timm(_imported("timm", name), f"hf-hub:{name}")
    return _from_transformers(name, trust_remote_code=trust_remote_code, token=token)


def _hub_info(name: str, token: str | None) -> Any:
    info = verify_on_hub(name, token)
    if info == "repo":
        raise MissingFileError(
            f"There is no model `{name}`, neither as a folder here nor on the Hub. Check the name; a private model "
            "requires a login (`hf auth login`)."
        )
    if info == "gated":
        raise NoAccessError(
            f"`{name}` is gated: accept its terms on the Hub, log in (`hf auth login`), and try again."
        )
    return info


def _from_transformers(
    name: str, *, trust_remote_code: bool, token: str | None = None, is_cached: bool = False
) -> nn.Module:
    transformers = _imported("transformers", name)
    try:
        config = transformers.AutoConfig.from_pretrained(
            name, trust_remote_code=trust_remote_code, token=token, local_files_only=is_cached
        )
        # The class that the config names, if transformers has it; `AutoModel` would omit the head.
        [architecture, *_] = getattr(config, "architectures", None) or [None]
        made = getattr(transformers, architecture, None) if architecture else None
        with init_empty_weights():
            if made is not None:
                model: nn.Module = made(config)
            else:
                model = transformers.AutoModel.from_config(config, trust_remote_code=trust_remote_code)
    except (OSError, *DAMAGE) as error:
        raise ConfigError(
            f"`{name}` has no config that transformers can read: {str(error) or type(error).__name__}. "
            "Pass a transformers model, or your own model as `module:factory`."
        ) from error
    return model


def _imported(library: str, name: str) -> Any:
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # for example a torchvision built for another torch
        if isinstance(error, ModuleNotFoundError) and error.name == library:
            raise NotAvailableError(
                f"`{name}` needs the package `{library}`, which is not installed. Run `pip install {library}`, or "
                "pass your own model as `module:factory`."
            ) from error
        raise NotAvailableError(
            f"`{name}` needs the package `{library}`, which is installed but cannot be imported: {error}. Install the "
            "missing part, built for this torch."
        ) from error


def verify_on_hub(repo: str, token: str | None = None) -> Any:
    """Return the Hub's info about a model, ``"gated"`` if it requires a login, ``"repo"`` if it does not exist.

    Args:
        repo: Name of the model on the Hub.
        token: Access token; by default the one of the last login.

    Raises:
        NotAvailableError: If `huggingface_hub` is not installed.
        UnreachableError: If the Hub cannot be reached.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise NotAvailableError(
            f"Looking up `{repo}` needs the package `huggingface_hub`, which cannot be imported: {error}. "
            "Run `pip install huggingface_hub`."
        ) from error
    try:
        return hub.model_info(repo, token=token)
    except errors.GatedRepoError:
        return "gated"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return "repo"
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:  # the base belongs to its HTTP library
        raise UnreachableError(
            f"The Hub cannot be reached to look up `{repo}`: {error}. Pass the folder or `config.json` of the model, "
            "`module:factory` for your own model, or the name of a model in the local Hub cache."
        ) from error


def check_has_model(error: BaseException) -> str:
    """Return the library that raised ``error`` over a missing model: ``timm``, ``transformers`` or ``unknown``."""
    message = str(error.args[0]) if error.args else ""
    if isinstance(error, RuntimeError) and "Unknown model" in message:
        return "timm"
    if isinstance(error, OSError) and "does not appear to have a file named" in message:
        return "transformers"
    return "unknown"
