"""A DeepSpeed config with keys that name their section, as ``zero_optimization.stage``."""

from __future__ import annotations

import base64
import binascii
import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import node_of, value_of
from accel_state.errors import ConfigError

_OFFLOADS = ("zero_optimization.offload_param.device", "zero_optimization.offload_optimizer.device")


class HfDeepSpeedConfig:
    """A DeepSpeed config as `DeepSpeedPlugin` and transformers hold it.

    Args:
        config_file_or_dict: The config: a dict, which is copied, the path of a JSON file, or that file's content in
            base64.

    Raises:
        ConfigError: If it is none of these.
    """

    def __init__(self, config_file_or_dict: Mapping[str, Any] | str | os.PathLike[str]) -> None:
        self.config: dict[str, Any] = read_config(config_file_or_dict)
        self.set_stage_and_offload()

    def set_stage_and_offload(self) -> None:
        """Look again at the ZeRO stage and the offloading, after ``config`` was changed."""
        self._stage: Any = self.get_value("zero_optimization.stage", -1)
        self._offload = any(self.get_value(key) in ("cpu", "nvme") for key in _OFFLOADS)

    def find_config_node(self, ds_key_long: str) -> tuple[dict[str, Any] | None, str]:
        """Return the section that a key stands in, None where there is none, and the key's last part."""
        return node_of(self.config, ds_key_long)

    def get_value(self, ds_key_long: str, default: Any = None) -> Any:
        """Return what a key says, or ``default`` where the config does not have it."""
        return value_of(self.config, ds_key_long, default)

    def del_config_sub_tree(self, ds_key_long: str, must_exist: bool = False) -> None:
        """Remove a key, or a section with all of its keys.

        Raises:
            ConfigError: If it is not there, with ``must_exist``.
        """
        section, last = node_of(self.config, ds_key_long)
        if section is not None and last in section:
            del section[last]
        elif must_exist:
            raise ConfigError(
                f"The DeepSpeed config has no `{ds_key_long}` to remove. "
                "Leave the call out, or pass `must_exist=False`."
            )

    def is_true(self, ds_key_long: str) -> bool:
        """Tell whether a key is there and says yes."""
        return bool(self.get_value(ds_key_long))

    def is_false(self, ds_key_long: str) -> bool:
        """Tell whether a key is there and says no."""
        value = self.get_value(ds_key_long)
        return value is not None and not value

    def is_zero2(self) -> bool:
        """Tell whether gradients and optimizer states are sharded."""
        return bool(self._stage == 2)

    def is_zero3(self) -> bool:
        """Tell whether parameters are sharded too."""
        return bool(self._stage == 3)

    def is_offload(self) -> bool:
        """Tell whether parameters or optimizer states are kept on the CPU or on NVMe."""
        return self._offload


def read_config(given: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """Return a DeepSpeed config that is given as a dict, the path of a JSON file, or base64.

    Raises:
        ConfigError: If it is none of these.
    """
    if isinstance(given, Mapping):
        return copy.deepcopy(dict(given))
    if not isinstance(given, str | os.PathLike):
        raise ConfigError(
            f"The DeepSpeed config is a `{type(given).__name__}`, but it must be a dict, the path of a JSON file, or "
            "that file in base64."
        )
    path = Path(given)
    is_file = os.path.isfile(given)  # noqa: PTH113 -- base64 may be longer than a name of a file may be
    text = path.read_text(encoding="utf-8") if is_file else _decoded(os.fspath(given))
    name = f"`{path}`" if is_file else "in base64"
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"The DeepSpeed config {name} is not JSON: {error}.") from error
    if not isinstance(config, dict):
        raise ConfigError(f"The DeepSpeed config {name} must be an object with keys, got {config!r}.")
    return config


def _decoded(given: str) -> str:
    try:
        return base64.b64decode(given, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise ConfigError(
            f"The DeepSpeed config `{given[:200]}` does not exist, and it is no base64. Give the path of a JSON file, "
            "a dict, or the file in base64."
        ) from None
