"""Look models up on the Hub."""

from __future__ import annotations

import importlib
from typing import Any

from accel_state.errors import NotAvailableError, UnreachableError


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
            f"The Hub cannot be reached to look up `{repo}`: {error}. Give the folder or `config.json` of the model, "
            "`module:factory` for a model of your own, or the name of a model in the local Hub cache."
        ) from error


def check_has_model(error: BaseException) -> str:
    """Return the library that raised ``error`` over a missing model: ``timm``, ``transformers`` or ``unknown``."""
    message = str(error.args[0]) if error.args else ""
    if isinstance(error, RuntimeError) and "Unknown model" in message:
        return "timm"
    if isinstance(error, OSError) and "does not appear to have a file named" in message:
        return "transformers"
    return "unknown"
