"""Start a script, in as many processes as asked for."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_launch.cli import HelpFormatter
from accel_launch.config.file import find_config
from accel_launch.launchers.local import check_shown_ranks
from accel_launch.launchers.selection import Launcher, row_of, select_launcher
from accel_launch.machine import Machine, find_accelerators, num_cpu_cores
from accel_launch.messages import show, warn
from accel_launch.options import OPTIONS, TOPICS, add_option, add_options, given_flags
from accel_launch.plan import LaunchPlan
from accel_launch.report import check_report_file
from accel_launch.request import (
    CommandKind,
    LaunchRequest,
    flags_of_task,
    interpreter_command,
    make_request,
)
from accel_launch.unused_settings import shared_needs, unused_settings
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, NotAvailableError, did_you_mean
from accel_state.open_files import max_open_files

USAGE = "accel launch [options] SCRIPT [arguments of the script]"
EXAMPLES = """\
examples:
  accel launch train.py --epochs 3                   one process, or one for each GPU
  accel launch --num_processes 2 --cpu train.py      two processes on the CPU
  accel launch --mixed_precision bf16 -m my.train    a module, in bf16
  accel launch --num_processes 4 --dry-run train.py  say what would be started

A setting comes from its flag, else the environment, else the config file, else its default.
What follows SCRIPT is the script's, also what looks like a flag of ours.
"""
ALL = "all"
"""The topic that means all of them."""
_COMMON = ("help", "config_file", "module", "dry_run")


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
        launcher = select_launcher(request)
        check_gpus(request, launcher, is_run=not arguments.dry_run)
        plan = plan_of(request, launcher)
        if arguments.dry_run:
            show(json.dumps(plan.to_dict(), indent=2) if arguments.json else plan.describe())
            return 0
        check_engine_installed(request, launcher)
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
        machine=Machine(
            num_cpu_cores(), accelerators.names, environ, accelerators.variable, max_open_files()
        ),
        cwd=Path.cwd(),
        kind=kind,
        interpreter=interpreter_command(),
        is_quiet=arguments.quiet,
    )
    for sentence in unused_settings(request):
        warn(sentence)
    return request


def plan_of(request: LaunchRequest, launcher: Launcher) -> LaunchPlan:
    """Return what ``launcher`` is going to do, with the variables that ``--env`` names.

    Raises:
        ConfigError: If the settings ask for what the launcher cannot do, or for the output of ranks that do not exist.
    """
    return check_shown_ranks(launcher.plan(request).with_private(request.named_variables()))


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


def check_gpus(request: LaunchRequest, launcher: Launcher, *, is_run: bool) -> None:
    """Refuse to run on the CPU what flags want to run on GPUs; warn of a config file, and before a dry run.

    Raises:
        ConfigError: If ranks on this machine are to use GPUs, but it has none.
    """
    if request.machine.gpus or request.value("use_cpu") or not row_of(launcher).starts_ranks_here:
        return
    kind = str(request.config.values.get("distributed_type"))
    asked = [f"--{name}" for name in ("multi_gpu", "gpu_ids") if request.settings[name].source == "flag"]
    if request.settings["gpu_ids"].source == "config file":
        asked.append(f"gpu_ids: {request.value('gpu_ids')}")
    is_refused = bool(asked) and is_run
    if kind.startswith("MULTI_") and kind != "MULTI_CPU" and request.engine is None:
        asked.append(f"distributed_type: {kind}")
    if asked:
        problem = f"`{asked[0]}` asks for GPUs, but none is found on this machine"
        remedy = "Look at the driver and what a container is given (`accel env`), or"
        if is_refused:
            raise ConfigError(f"{problem}, and nothing was started. {remedy} use `--cpu` instead.")
        warn(f"{problem}: everything runs on its CPU. {remedy} add `--cpu`.")


def check_engine_installed(request: LaunchRequest, launcher: Launcher) -> None:
    """Refuse to train with DeepSpeed where it is not installed; warn if the ranks may have it all the same.

    Raises:
        NotAvailableError: If the ranks would run with the packages of this process.
    """
    row = row_of(launcher)
    if request.engine != "DEEPSPEED" or row.checks_engine:
        return
    from accel_state.availability import why_not

    reason = why_not("deepspeed")
    if reason is None:
        return
    if request.kind != "executable" and row.starts_ranks_here:
        raise NotAvailableError(f"`--use_deepspeed` needs DeepSpeed, and nothing was started. {reason}")
    warn(f"`--use_deepspeed` needs DeepSpeed where the ranks run; here: {reason}")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add everything that ``accel launch`` takes."""
    parser.usage = USAGE
    parser.epilog = EXAMPLES
    parser.add_argument(
        "training_script", nargs=argparse.REMAINDER, action=_ScriptAndArguments, help=argparse.SUPPRESS
    )
    add_common_flags(parser)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for `python -m`.")
    kind.add_argument(
        "--no_python", action="store_true", help="SCRIPT is a program of its own, not Python's."
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="Leave out the report of a failure.")
    parser.add_argument("--json", action="store_true", help="With --dry-run, print it as JSON.")
    add_options(parser)


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Add the help by topic, and what `accel test` takes as well."""
    parser.add_argument(
        "-h",
        "--help",
        nargs="?",
        metavar="TOPIC",
        action=_TopicHelp,
        default=argparse.SUPPRESS,
        help=f"Show this help, that of a topic, or `{ALL}`.",
    )
    parser.add_argument("--config_file", metavar="FILE", help="Config file to use instead of your own.")
    parser.add_argument(
        "--dry-run", action="store_true", help="Print what would be started, and start nothing."
    )


def help_text(topic: str | None, command: argparse.ArgumentParser) -> str:
    """Return the flags of ``command`` that most people need, or those of ``topic``."""
    parser = argparse.ArgumentParser(
        usage=command.usage, formatter_class=HelpFormatter, add_help=False, allow_abbrev=False
    )
    if topic is None:
        parser.description = command.description
        topics = f"more flags, by topic (`{command.prog} --help TOPIC`):\n  {', '.join([*TOPICS, ALL])}"
        parser.epilog = "\n\n".join(filter(None, [topics, command.epilog]))
        options = parser.add_argument_group("options")
        for action in command._actions:
            if action.dest in _COMMON:
                options._add_action(action)
        for setting in OPTIONS:
            if setting.launch.is_common:
                add_option(options, setting)
    else:
        needs = shared_needs(TOPICS[topic].settings)
        parser.epilog = f"They have no effect {needs}." if needs else None
        add_options(parser, [TOPICS[topic]])
    return parser.format_help().rstrip()


class _TopicHelp(argparse.Action):
    """Shows the help of the topic that follows, or the short one, and ends."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        topic = None if values is None else str(values)
        if topic == ALL:
            show(parser.format_help().rstrip())
        elif topic is None or topic in TOPICS:
            show(help_text(topic, parser))
        else:
            known = [*TOPICS, ALL]
            parser.error(f"unknown topic `{topic}`. Known: {', '.join(known)}.{did_you_mean(topic, known)}")
        parser.exit()


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
