"""Convert a config file for FSDP version 1 into one for version 2."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel_launch.config.file import ALIASES, SECTIONS, ConfigFile, find_config, read_document
from accel_launch.config.writing import document_of, write_config
from accel_launch.messages import inform, show
from accel_launch.options import OPTIONS
from accel_launch.resolution import resolve
from accel_state.environment import snapshot
from accel_state.errors import ConfigError
from accel_state.fsdp_versions import HYBRIDS, RESHARDS, reshards, strategy_of

# What version 2 does without, and how it behaves instead.
_DROPPED: Mapping[str, str] = {
    "fsdp_backward_prefetch": "version 2 always fetches the next unit before it needs it",
    "fsdp_forward_prefetch": "version 2 takes `num_forward_prefetch` of `FullyShardedDataParallelPlugin`",
    "fsdp_sync_module_states": "version 2 always begins with the values of rank 0",
    "fsdp_use_orig_params": "version 2 always keeps the original parameters",
}
_SECTION = "fsdp_config."
_CONVERTED = ("fsdp_config", "parallelism_config")
_SIZES = "parallelism_config.parallelism_config_"


@dataclass(frozen=True, slots=True)
class Conversion:
    """The values of the new file, and a sentence for each thing that is not simply carried over."""

    values: Mapping[str, Any]
    notes: tuple[str, ...]


def to_version_2(config: ConfigFile) -> Conversion | None:
    """Return the file's settings for version 2; None if it is for version 2 already.

    Raises:
        ConfigError: If it has no FSDP settings, or asks for what version 2 does not have.
    """
    has_section = any(key.startswith(_SECTION) for key in config.values)
    if config.values.get("distributed_type") != "FSDP" and not has_section:
        raise ConfigError(
            f"`{config.path}` has no FSDP settings, so there is nothing to convert. "
            "Name a config file with FSDP."
        )
    settings = {setting.name: setting for setting in OPTIONS}
    said = {
        name: found.value
        for name, found in resolve(OPTIONS, flags={}, environ={}, config=config).items()
        if found.source == "config file"
    }
    if said.get("fsdp_version") == 2:
        return None
    replaced = {settings[name].config_key for name in ("fsdp_sharding_strategy", *_DROPPED)}
    values = {key: value for key, value in config.values.items() if key not in replaced}
    strategy = strategy_of(
        said.get("fsdp_sharding_strategy"), said.get("fsdp_reshard_after_forward"), is_from_launcher=True
    )
    notes = [
        f"`{settings[name].config_key}` is dropped: {why}." for name, why in _DROPPED.items() if name in said
    ]
    values |= {f"{_SECTION}fsdp_version": 2}
    for converted, note in (
        _sharding(strategy, said, path=config.path),
        _checkpoints(said.get("fsdp_state_dict_type")),
    ):
        values |= converted
        notes += note
    return Conversion(values, tuple(notes))


def convert_config_to_fsdp2(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a config file for version 1 as one for version 2; keys that are unknown are kept.

    Raises:
        ConfigError: As `to_version_2`.
    """
    flat = {key: value for key, value in config.items() if key not in SECTIONS}
    for section in SECTIONS.keys() & config.keys():
        flat |= {f"{section}.{key}": value for key, value in (config[section] or {}).items()}
    converted = to_version_2(ConfigFile(values={ALIASES.get(key, key): value for key, value in flat.items()}))
    return dict(config) if converted is None else {**config, **_sections(converted)}


def _sections(converted: Conversion) -> dict[str, Any]:
    document = document_of(converted.values)
    return {key: document[key] for key in _CONVERTED if key in document}


def _sharding(strategy: str, said: Mapping[str, Any], *, path: object) -> tuple[dict[str, Any], list[str]]:
    key = f"{_SECTION}fsdp_reshard_after_forward"
    if strategy not in HYBRIDS:
        resharding = reshards(strategy)
        return {key: resharding}, [f"`{strategy}` is now `{key}: {_shown(resharding)}`."]
    num_machines = said.get("num_machines", 1)
    num_processes = said.get("num_processes")
    if num_machines == 1:
        note = f"`{strategy}` on one machine is one copy of the model: `{key}: {_shown(RESHARDS[strategy])}`."
        return {key: RESHARDS[strategy]}, [note]
    if num_processes is None or num_processes % num_machines:
        raise ConfigError(
            f"`{strategy}` becomes one copy of the model for each of the {num_machines} machines, so `num_processes` "
            f"in `{path}` must be a multiple of {num_machines}. Set it to the number of all processes."
        )
    sizes = {"dp_replicate": num_machines, "dp_shard": num_processes // num_machines}
    described = ", ".join(f"{axis}_size={size}" for axis, size in sizes.items())
    note = f"`{strategy}` is now `{key}: {_shown(RESHARDS[strategy])}` over `ParallelismConfig({described})`."
    return {key: RESHARDS[strategy], **{f"{_SIZES}{axis}_size": size for axis, size in sizes.items()}}, [note]


def _checkpoints(kind: str | None) -> tuple[dict[str, Any], list[str]]:
    key = f"{_SECTION}fsdp_state_dict_type"
    if kind is None:
        return {key: "FULL_STATE_DICT"}, [
            f"`{key}: FULL_STATE_DICT` keeps the default of version 1; that of version 2 is SHARDED_STATE_DICT."
        ]
    if kind == "LOCAL_STATE_DICT":
        return {key: "SHARDED_STATE_DICT"}, [
            f"`{key}` is now SHARDED_STATE_DICT: version 2 has no LOCAL_STATE_DICT."
        ]
    return {key: kind}, []


def _shown(value: bool) -> str:
    return str(value).lower()


class ToFsdp2Command:
    """``accel to-fsdp2``."""

    help = "Convert a config file for FSDP version 1 into one for version 2"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--config_file", metavar="FILE", help="file to convert; your own if omitted")
        parser.add_argument("--output_file", metavar="FILE", help="file to write")
        parser.add_argument(
            "--overwrite",
            action="store_true",
            help="replace the file to write if it is there, or without `--output_file` the file to convert",
        )

    def run(self, arguments: argparse.Namespace) -> int:
        config = find_config(arguments.config_file, environ=snapshot())
        if config.path is None:
            raise ConfigError("There is no config file to convert. Name one with `--config_file`.")
        target = _target(arguments, config.path)
        converted = to_version_2(config)
        if converted is None:
            show(f"`{config.path}` is for version 2 already; nothing was written.")
            return 0
        write_config(target, read_document(config.path) | _sections(converted))
        for note in converted.notes:
            inform(note)
        show(f"The configuration for version 2 is saved at `{target}`.")
        return 0


command = ToFsdp2Command()


def _target(arguments: argparse.Namespace, source: Path) -> Path:
    """Return the file to write.

    Raises:
        ConfigError: If it is there and must not be replaced.
    """
    if arguments.output_file is None:
        if not arguments.overwrite:
            raise ConfigError(
                f"The file to write is missing. Give `--output_file FILE`, or `--overwrite` to replace `{source}`."
            )
        return source
    target = Path(arguments.output_file).expanduser()
    if target.exists() and not arguments.overwrite:
        raise ConfigError(f"`{target}` exists already. Add `--overwrite` to replace it.")
    return target
