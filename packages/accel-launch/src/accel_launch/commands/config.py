"""Answer questions and write them to a config file; update or show that file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from accel_launch.cli import HelpFormatter
from accel_launch.config.basic import location_of, write_basic_config
from accel_launch.config.file import find_config
from accel_launch.config.prompts import make_asker
from accel_launch.config.questionnaire import fill_in
from accel_launch.config.show import as_data, as_table, as_text, engine_rows, rows_of
from accel_launch.config.templates import read_template, template_table
from accel_launch.config.writing import document_of, new_document, write_config, write_text
from accel_launch.messages import complain, show
from accel_launch.options import add_options, given_flags
from accel_state.environment import snapshot
from accel_state.errors import ConfigError

_PLACE = "path of the config file; the default path (`HF_HOME`, `XDG_CACHE_HOME`, `~/.cache`) if omitted"
_INTERRUPTED = 130
_Parsers: TypeAlias = Sequence[argparse.ArgumentParser]
_Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class ConfigCommand:
    """``accel config``."""

    help = "Answer questions and write them to a config file; update or show that file"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--config_file", metavar="FILE", default=None, help=_PLACE)
        parser.add_argument(
            "--template",
            nargs="?",
            const="",
            metavar="NAME",
            help="print a config file to start from, or write it to --config_file; without NAME, list them",
        )
        actions = parser.add_subparsers(dest="action", metavar="ACTION", title="instead of asking")
        default_command_parser(actions)
        update_command_parser(actions)
        shown = _action(actions, "show", "show the settings of a launch, their values and who set them")
        shown.add_argument("--all", action="store_true", help="show those with their default too")
        shown.add_argument("--json", action="store_true", help="print it as JSON, with all of them")
        shown.add_argument(
            "--deepspeed",
            action="store_true",
            help="show the DeepSpeed config instead, and the source of each value",
        )
        shown.usage = "accel config show [options] [flags of accel launch]"
        shown.epilog = "The flags are those of `accel launch`, which `accel launch --help all` lists."
        add_options(shown, has_help=False)

    def run(self, arguments: argparse.Namespace) -> int:
        if getattr(arguments, "template", None) is not None:
            return use_template(arguments)
        actions = {"default": write_default, "update": update, "show": show_settings, None: ask_and_write}
        return actions[arguments.action](arguments)


command = ConfigCommand()


def default_command_parser(parser: _Actions, parents: _Parsers = ()) -> argparse.ArgumentParser:
    """Add the action ``default`` to those of ``accel config``, or of another program."""
    default = _action(parser, "default", "write a file that suits this machine, unless there is one", parents)
    default.add_argument(
        "--mixed_precision", default="no", metavar="{no,fp16,bf16,fp8}", help="number format; default no"
    )
    return default


def update_command_parser(parser: _Actions, parents: _Parsers = ()) -> argparse.ArgumentParser:
    """Add the action ``update`` to those of ``accel config``, or of another program."""
    text = "write an older file again with the names that newer ones use, and nothing else changed"
    return _action(parser, "update", text, parents)


def ask_and_write(arguments: argparse.Namespace) -> int:
    """Ask everything that matters, and write the file at the end only."""
    environ = snapshot()
    path = location_of(arguments.config_file, environ=environ)
    try:
        values = fill_in(make_asker(environ))
    except KeyboardInterrupt:
        complain("Interrupted; nothing was written.")
        return _INTERRUPTED
    write_config(path, new_document(values))
    show(f"The configuration is saved at `{path}`.")
    return 0


def write_default(arguments: argparse.Namespace) -> int:
    """Write a file that suits this machine."""
    given = getattr(arguments, "config_file", getattr(arguments, "save_location", None))
    path = write_basic_config(arguments.mixed_precision, *([] if given is None else [given]))
    if path:
        show(f"The configuration is saved at `{path}`.")
    return 0


def use_template(arguments: argparse.Namespace) -> int:
    """Print a template, write it to `--config_file`, or list all of them.

    Raises:
        ConfigError: If an action is named as well, there is no such template, or the file exists.
    """
    if arguments.action is not None:
        raise ConfigError(f"`--template` and `{arguments.action}` exclude each other. Remove one of them.")
    if not arguments.template:
        show(template_table())
        return 0
    text = read_template(arguments.template)
    if arguments.config_file is None:
        show(text.rstrip("\n"))
        return 0
    path = Path(arguments.config_file).expanduser()
    if path.exists():
        raise ConfigError(f"`{path}` exists already. Remove it, or name another file with `--config_file`.")
    write_text(path, text)
    show(f"The configuration is saved at `{path}`.")
    return 0


def update(arguments: argparse.Namespace) -> int:
    """Write an existing file again, with the newer names; a key that it lacks stays open."""
    config = find_config(getattr(arguments, "config_file", None), environ=snapshot())
    if config.path is None:
        raise ConfigError("There is no config file to update. Write one with `accel config`.")
    write_config(config.path, document_of(config.values))
    show(f"The configuration at `{config.path}` is up to date.")
    return 0


def show_settings(arguments: argparse.Namespace) -> int:
    """Print every setting with its value and who set it."""
    environ = snapshot()
    config = find_config(arguments.config_file, environ=environ)
    if arguments.deepspeed:
        seen = engine_rows("deepspeed", flags=given_flags(arguments), environ=environ, config=config)
        as_json = {name: {"value": value, "source": source} for name, value, source in seen}
        table = as_table([("key", "value", "said by"), *seen])
        show(json.dumps(as_json, indent=2) if arguments.json else "\n".join(table))
        return 0
    rows = rows_of(flags=given_flags(arguments), environ=environ, config=config)
    shown = as_text(rows, config=config, is_all=arguments.all)
    show(json.dumps(as_data(rows), indent=2) if arguments.json else shown)
    return 0


def _action(actions: _Actions, name: str, text: str, parents: _Parsers = ()) -> argparse.ArgumentParser:
    parser = actions.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        allow_abbrev=False,
        formatter_class=HelpFormatter,
        parents=list(parents),
    )
    parser.set_defaults(action=name, func=command.run)
    # SUPPRESS: a file named before the action stays named
    parser.add_argument("--config_file", metavar="FILE", default=argparse.SUPPRESS, help=_PLACE)
    return parser
