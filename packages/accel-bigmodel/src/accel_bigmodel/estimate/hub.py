"""Whether a model is on the Hub, and why it could not be made from there."""

from __future__ import annotations

import importlib
from typing import Any

from accel_state.errors import NotAvailableError


def verify_on_hub(repo: str, token: str | None = None) -> Any:
    """Return what the Hub says of a model: its info, ``"gated"`` if it wants a login, ``"repo"`` if it is not there.

    Args:
        repo: Name on the Hub.
        token: Of an account; by default that of the last login.

    Raises:
        NotAvailableError: If `huggingface_hub` is not installed, or the Hub cannot be reached.
    """
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        errors: Any = importlib.import_module("huggingface_hub.errors")
    except ImportError as error:
        raise NotAvailableError(
            f"`{repo}` is looked up with the package `huggingface_hub`, which cannot be imported: {error}. "
            "Run `pip install huggingface_hub`."
        ) from error
    try:
        return hub.model_info(repo, token=token)
    except errors.GatedRepoError:
        return "gated"
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return "repo"
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:  # of whichever HTTP library it uses
        raise NotAvailableError(
            f"The Hub cannot be reached to look up `{repo}`: {error}. Give a folder or `config.json` of the model, "
            "`module:factory` of one of your own, or a name whose files the cache of the Hub has."
        ) from error


def check_has_model(error: BaseException) -> str:
    """Return which library raised ``error`` for want of a model: ``timm``, ``transformers`` or ``unknown``."""
    told = str(error.args[0]) if error.args else ""
    if isinstance(error, RuntimeError) and "Unknown model" in told:
        return "timm"
    if isinstance(error, OSError) and "does not appear to have a file named" in told:
        return "transformers"
    return "unknown"
