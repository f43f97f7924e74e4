"""Convert a config file for FSDP version 1 into one for version 2."""

from __future__ import annotations

import argparse
from pathlib import Path

from accel_launch.config.file import find_config
from accel_launch.config.fsdp_conversion import to_version_2
from accel_launch.config.writing import write_config
from accel_launch.messages import inform, show
from accel_state.environment import snapshot
from accel_state.errors import ConfigError


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
        write_config(target, converted.values)
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
                f"Say where to write: `--output_file FILE`, or `--overwrite` to replace `{source}` itself."
            )
        return source
    target = Path(arguments.output_file).expanduser()
    if target.exists() and not arguments.overwrite:
        raise ConfigError(f"`{target}` exists already. Add `--overwrite` to replace it.")
    return target
