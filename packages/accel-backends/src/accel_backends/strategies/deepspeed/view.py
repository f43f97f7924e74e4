"""A DeepSpeed config as a launch would fill it, for people to read before anything runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import leaves
from accel_backends.plugins.deepspeed.filling import Facts, Said, fill
from accel_backends.plugins.deepspeed.hf_config import read_config
from accel_backends.plugins.deepspeed.rules import autotp_size
from accel_backends.plugins.deepspeed.values import KEYS, TEMPLATE, default_of, setting_of

_SHARING = ("parallelism_cp_size", "parallelism_sp_size")


def show(given: Mapping[str, tuple[Any, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield key, value and origin of each key of the DeepSpeed config; what only the script knows is `auto` still.

    Args:
        given: Each setting that somebody gave, with who gave it, by name.

    Raises:
        ConfigError: If settings contradict the config, or it cannot be read.
    """
    path, _ = given.get("deepspeed_config_file", (None, ""))
    config = TEMPLATE if path is None else read_config(path)
    source = "default" if path is None else f"`{path}`"
    filled = fill(config, _facts(given, config), source=source, must_be_complete=False)
    for key, value in leaves(filled.config):
        wanted = filled.unfilled.get(key)
        if wanted is None:
            shown = str(value) if isinstance(value, str | float) else json.dumps(value)
            yield key, shown, filled.origins[key]
        else:
            yield key, "auto", f"not known yet: needs {wanted}" if wanted else "nobody: write the value"


def _facts(given: Mapping[str, tuple[Any, str]], config: Mapping[str, Any]) -> Facts:
    said: dict[str, Any] = {
        name: Said(*given[setting_of(name)]) if setting_of(name) in given else default_of(name)
        for name in KEYS
    }
    if "mixed_precision" in given:
        said["mixed_precision"] = Said(*given["mixed_precision"])
    if "parallelism_tp_size" in given:
        said["tp_size"] = Said(*given["parallelism_tp_size"])
    if "num_processes" in given:
        number, by = given["num_processes"]
        sharing = given.get("parallelism_tp_size", (autotp_size(config), ""))[0]
        for name in _SHARING:
            sharing *= given.get(name, (1, ""))[0]
        said["num_data_ranks"] = Said(number // sharing, by)
    return Facts(**said)
