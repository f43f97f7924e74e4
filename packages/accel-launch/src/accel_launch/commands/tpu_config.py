"""Run commands on all machines of a TPU pod, to set it up."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel_launch.config.file import ConfigFile, find_config, read_text_file
from accel_launch.gcloud import INSTALL, PROGRAM, PYTHON_OF_PODS, on_all_workers
from accel_launch.installation import INSTALL_FROM, PACKAGES
from accel_launch.launchers.submission import require_program
from accel_launch.messages import show
from accel_launch.processes.child import exit_code_for_shell
from accel_state.environment import snapshot
from accel_state.errors import ConfigError

EPILOG = "What the flags do not say comes from the config file."


class TpuConfigCommand:
    """``accel tpu-config``."""

    help = "Run commands on all machines of a TPU pod, to set it up"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = EPILOG
        parser.add_argument("--config_file", metavar="FILE", help="config file to use instead of your own")
        parser.add_argument("--tpu_name", metavar="NAME", help="name of the TPU")
        parser.add_argument("--tpu_zone", metavar="ZONE", help="zone of the TPU")
        parser.add_argument("--use_alpha", action="store_true", help="use `gcloud alpha`")
        parser.add_argument("--command_file", metavar="FILE", help="file with the commands, one per line")
        parser.add_argument(
            "--command",
            metavar="COMMAND",
            action="append",
            nargs="+",
            help="a command to run; may be given several times",
        )
        parser.add_argument(
            "--install_accel",
            "--install_accelerate",
            action="store_true",
            help="install accel there before the commands",
        )
        parser.add_argument(
            "--accel_version",
            "--accelerate_version",
            metavar="PLACE",
            help="where to install from: a folder with wheels that each machine can read, or a `git+…` address",
        )
        parser.add_argument("--debug", action="store_true", help="print the command instead of running it")

    def run(self, arguments: argparse.Namespace) -> int:
        config = find_config(arguments.config_file, environ=snapshot())
        argv = gcloud_command(arguments, config)
        if arguments.debug:
            show(f"Running {shlex.join(argv)}")
            return 0
        return _run(argv)


command = TpuConfigCommand()


def gcloud_command(arguments: argparse.Namespace, config: ConfigFile) -> tuple[str, ...]:
    """Return the command line that runs everything on all machines of the pod.

    Raises:
        ConfigError: If neither flags nor config file say which TPU, where, or what to run.
    """
    name = _required(arguments.tpu_name or config.values.get("tpu_name"), "tpu_name", "the TPU")
    zone = _required(arguments.tpu_zone or config.values.get("tpu_zone"), "tpu_zone", "its zone")
    # `set -e`: a step that fails is the last.
    steps = ["set -e", "cd /usr/share", *_installation(arguments), *_commands(arguments, config)]
    return on_all_workers(name, "; ".join(steps), zone=zone, is_alpha=arguments.use_alpha)


def _required(value: Any, flag: str, what: str) -> str:
    if not value:
        raise ConfigError(f"`--{flag}` is missing: name {what} with the flag or in the config file.")
    return str(value)


def _installation(arguments: argparse.Namespace) -> list[str]:
    if not arguments.install_accel:
        if arguments.accel_version is not None:
            raise ConfigError("`--accel_version` has no effect without `--install_accel`. Add that.")
        return []
    place = arguments.accel_version or ""
    if "/" not in place:  # a version, or nothing
        raise ConfigError(
            "`--install_accel` installs from a place, not from an index, where the names may be another project's. "
            f"Give `--accel_version /FOLDER`, which each machine can read and which has {INSTALL_FROM}; or the "
            "address of a repository, such as `--accel_version git+https://HOST/accel.git`."
        )
    what = f"{shlex.quote(place.rstrip('/'))}/*.whl"
    if place.startswith("git+"):  # one package would bring the others from an index
        address = place.partition("#")[0]
        what = shlex.join(f"{address}#subdirectory=packages/{name}" for name in PACKAGES)
    return [f"{shlex.join(PYTHON_OF_PODS)} -m pip install {what}"]


def _commands(arguments: argparse.Namespace, config: ConfigFile) -> list[str]:
    given = [word for words in arguments.command or () for word in words]
    file = arguments.command_file
    if given and file is not None:
        raise ConfigError("`--command` and `--command_file` both say what to run. Give one of them.")
    if not given and file is None:
        in_config = config.values.get("commands") or []
        given = [in_config] if isinstance(in_config, str) else [str(one) for one in in_config]
        file = config.values.get("command_file")
    if file and not given:
        lines = read_text_file(
            Path(str(file)).expanduser(), what=f"The file of commands `{file}`"
        ).splitlines()
        given = [line.strip() for line in lines if line.strip()]
    if not given:
        raise ConfigError("There is nothing to run on the pod: use `--command` or `--command_file`.")
    return given


def _run(argv: Sequence[str]) -> int:
    import subprocess

    require_program(PROGRAM, asked_by="accel tpu-config", otherwise=INSTALL)
    return exit_code_for_shell(subprocess.run(argv, check=False).returncode)
