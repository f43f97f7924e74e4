"""Start a script, in as many processes as asked for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_launch.accelerators.detection import find_accelerators
from accel_launch.config.file import find_config
from accel_launch.cpu_cores import num_cpu_cores
from accel_launch.engine_installed import check_engine_installed
from accel_launch.interpreter import interpreter_command
from accel_launch.launchers.nested_launch import flags_of_slurm_task
from accel_launch.launchers.selection import BUILT_IN, accepting_launchers
from accel_launch.messages import inform, show, warn
from accel_launch.options import add_options, given_flags
from accel_launch.relevance import without_effect
from accel_launch.reports.rendering import check_report_file
from accel_launch.request import CommandKind, LaunchRequest, Machine, make_request
from accel_state.environment import snapshot
from accel_state.errors import ConfigError

EXAMPLES = """\
examples:
  accel launch train.py --epochs 3                   one process, or one for each GPU
  accel launch --num_processes 2 --cpu train.py      two processes on the CPU
  accel launch --mixed_precision bf16 -m my.train    a module, in bf16
  accel launch --num_processes 4 --dry-run train.py  say what would be started

A setting comes from its flag, else the environment, else the config file, else its default.
What follows SCRIPT is the script's, also what looks like a flag of ours.
"""


class _ScriptAndArguments(argparse.Action):
    """Takes everything from the script on: a positional for the script alone would make argparse swallow a `--`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        words = list(values or ())
        words = words[1:] if words[:1] == ["--"] else words
        script, *rest = words or [None]
        namespace.training_script, namespace.training_script_args = script, rest


class LaunchCommand:
    """``accel launch``."""

    help = "Start a script, in as many processes as asked for"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "accel launch [options] SCRIPT [arguments of the script]"
        parser.epilog = EXAMPLES
        parser.add_argument(
            "training_script", nargs=argparse.REMAINDER, action=_ScriptAndArguments, help=argparse.SUPPRESS
        )
        parser.add_argument("--config_file", metavar="FILE", help="Config file to use instead of your own.")
        kind = parser.add_mutually_exclusive_group()
        kind.add_argument(
            "-m", "--module", action="store_true", help="SCRIPT is a module, as for `python -m`."
        )
        kind.add_argument(
            "--no_python", action="store_true", help="SCRIPT is a program of its own, not Python's."
        )
        parser.add_argument(
            "-q", "--quiet", action="store_true", help="Leave out the sentence that tells how a run failed."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Print what would be started, and start nothing."
        )
        parser.add_argument("--json", action="store_true", help="With --dry-run, print it as JSON.")
        add_options(parser)
        parser.set_defaults(refuse=parser.error)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.json and not arguments.dry_run:
            arguments.refuse("`--json` goes with `--dry-run` only")
        if not arguments.training_script:
            arguments.refuse("there is nothing to launch; name a script")
        request = request_of(arguments)
        launcher, *others = accepting_launchers(request)
        passed_over = [other.name for other in others if other.name not in BUILT_IN]
        if passed_over:
            names = ", ".join(f"`{name}`" for name in passed_over)
            inform(
                f"The launcher `{launcher.name}` comes before {names} by name; `--launcher` chooses another."
            )
        plan = launcher.plan(request)
        if arguments.dry_run:
            show(json.dumps(plan.to_dict(), indent=2) if arguments.json else plan.describe())
            return 0
        check_engine_installed(request)
        if plan.report is not None:
            check_report_file(plan.report)
        return launcher.run(plan)


command = LaunchCommand()


def request_of(arguments: argparse.Namespace) -> LaunchRequest:
    """Return what the arguments of ``accel launch`` ask for, with every setting decided; warn of those without effect.

    Raises:
        ConfigError: If a value is wrong, or two contradict each other.
    """
    environ = snapshot()
    config = find_config(arguments.config_file, environ=environ)
    kind: CommandKind = "module" if arguments.module else "executable" if arguments.no_python else "script"
    accelerators = find_accelerators(environ)
    request = make_request(
        _checked_command((str(arguments.training_script), *map(str, arguments.training_script_args)), kind),
        flags=_flags(arguments, environ),
        config=config,
        machine=Machine(num_cpu_cores(), accelerators.names, environ, accelerators.variable),
        cwd=Path.cwd(),
        kind=kind,
        interpreter=interpreter_command(),
        is_quiet=arguments.quiet,
    )
    for sentence in without_effect(request):
        warn(sentence)
    return request


def _flags(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the flags say; where they say nothing of machines, a task of SLURM's `srun` knows them."""
    given = given_flags(arguments)
    by_hand = given.keys() & {"num_machines", "machine_rank", "master_addr"}
    return given if by_hand else flags_of_slurm_task(environ) | given


def _checked_command(command: tuple[str, ...], kind: CommandKind) -> tuple[str, ...]:
    if kind == "script" and not Path(command[0]).exists():
        raise ConfigError(
            f"The script `{command[0]}` does not exist in `{Path.cwd()}`. For a module, use `-m`."
        )
    return command
