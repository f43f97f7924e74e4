"""Start a script, in as many processes as asked for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from accel_launch.accelerators.detection import find_accelerators
from accel_launch.commands.launch_flags import add_flags
from accel_launch.config.file import find_config
from accel_launch.cpu_cores import num_cpu_cores
from accel_launch.engine_installed import check_engine_installed
from accel_launch.installation import interpreter_command
from accel_launch.launchers.outer_task import flags_of_task
from accel_launch.launchers.protocol import Launcher
from accel_launch.launchers.selection import BUILT_IN, accepting_launchers
from accel_launch.messages import inform, show, warn
from accel_launch.options import given_flags
from accel_launch.plan import LaunchPlan
from accel_launch.reports.rendering import check_report_file
from accel_launch.request import CommandKind, LaunchRequest, Machine, make_request
from accel_launch.unused_settings import unused_settings
from accel_state.environment import snapshot
from accel_state.errors import ConfigError


class LaunchCommand:
    """``accel launch``."""

    help = "Start a script, in as many processes as asked for"
    has_own_help = True

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add_flags(parser)
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
        plan = plan_of(request, launcher)
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
    for sentence in unused_settings(request):
        warn(sentence)
    return request


def plan_of(request: LaunchRequest, launcher: Launcher) -> LaunchPlan:
    """Return what ``launcher`` is going to do, with the variables that ``--env`` names."""
    return launcher.plan(request).with_private(request.named_variables())


def _flags(arguments: argparse.Namespace, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the flags say, and what follows from being a task of `mpirun` or `srun`."""
    given = given_flags(arguments)
    return given | flags_of_task(environ, given)


def _checked_command(command: tuple[str, ...], kind: CommandKind) -> tuple[str, ...]:
    script = Path(command[0])
    if kind == "script" and not script.exists():
        raise ConfigError(f"The script `{script}` does not exist in `{Path.cwd()}`. For a module, use `-m`.")
    if kind == "script" and script.is_dir() and not (script / "__main__.py").is_file():
        raise ConfigError(f"The script `{script}` is a folder without a `__main__.py`. Name a file in it.")
    return command
