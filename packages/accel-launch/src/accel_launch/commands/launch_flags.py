"""The command line of ``accel launch``: its flags, and their help by topic."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from accel_launch.commands.parsing import HelpFormatter
from accel_launch.messages import show
from accel_launch.options import OPTIONS, TOPICS, add_option, add_options
from accel_launch.unused_settings import shared_needs
from accel_state.errors import did_you_mean

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
"""The topic that stands for all of them."""
_COMMON = ("help", "config_file", "module", "dry_run")


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
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="Leave out the sentence that tells how a run failed."
    )
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
