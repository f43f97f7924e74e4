"""Where the config file lies unless a flag says otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FILE_NAMES = ("default_config.yaml", "default_config.yml", "default_config.json")


def config_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user's config file.

    It is ``accelerate`` in ``$HF_HOME`` if that is set, else ``huggingface/accelerate`` in
    ``$XDG_CACHE_HOME`` (``~/.cache`` if that is not set).
    """
    if environ.get("HF_HOME"):
        return Path(environ["HF_HOME"]).expanduser() / "accelerate"
    cache = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "accelerate"


def default_config_file(environ: Mapping[str, str]) -> Path | None:
    """Return the config file of this user: the first that exists of `FILE_NAMES`, or None."""
    candidates = (config_folder(environ) / name for name in FILE_NAMES)
    return next((path for path in candidates if path.is_file()), None)
