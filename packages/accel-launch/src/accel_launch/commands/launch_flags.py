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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add everything that ``accel launch`` takes."""
    parser.usage = USAGE
    parser.epilog = EXAMPLES
    parser.add_argument(
        "training_script", nargs=argparse.REMAINDER, action=_ScriptAndArguments, help=argparse.SUPPRESS
    )
    _add_help(parser)
    kind = parser.add_mutually_exclusive_group()
    _add_common(parser, kind)
    kind.add_argument(
        "--no_python", action="store_true", help="SCRIPT is a program of its own, not Python's."
    )
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="Leave out the sentence that tells how a run failed."
    )
    parser.add_argument("--json", action="store_true", help="With --dry-run, print it as JSON.")
    add_options(parser)


def help_text(topic: str | None, description: str) -> str:
    """Return the flags that most people need, or those of ``topic``."""
    parser = argparse.ArgumentParser(
        usage=USAGE, formatter_class=HelpFormatter, add_help=False, allow_abbrev=False
    )
    if topic is None:
        parser.description = description
        parser.epilog = f"{_topics()}\n\n{EXAMPLES}"
        options = parser.add_argument_group("options")
        _add_help(options)
        _add_common(options, options)
        for setting in OPTIONS:
            if setting.launch.is_common:
                add_option(options, setting)
    else:
        needs = shared_needs(TOPICS[topic].settings)
        parser.epilog = f"They have no effect {needs}." if needs else None
        add_options(parser, [TOPICS[topic]])
    return parser.format_help().rstrip()


def _add_help(container: argparse._ActionsContainer) -> None:
    container.add_argument(
        "-h",
        "--help",
        nargs="?",
        metavar="TOPIC",
        action=_TopicHelp,
        default=argparse.SUPPRESS,
        help=f"Show this help, that of a topic, or `{ALL}`.",
    )


def _add_common(container: argparse._ActionsContainer, kind: argparse._ActionsContainer) -> None:
    container.add_argument("--config_file", metavar="FILE", help="Config file to use instead of your own.")
    kind.add_argument("-m", "--module", action="store_true", help="SCRIPT is a module, as for `python -m`.")
    container.add_argument(
        "--dry-run", action="store_true", help="Print what would be started, and start nothing."
    )


def _topics() -> str:
    return f"more flags, by topic (`accel launch --help TOPIC`):\n  {', '.join([*TOPICS, ALL])}"


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
            show(help_text(topic, parser.description or ""))
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
