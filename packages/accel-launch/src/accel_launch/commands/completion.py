"""Print what a shell needs to complete commands and flags."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence

from accel_launch.cli import COMMAND_GROUP, Command, make_parser
from accel_launch.messages import show
from accel_launch.options import OPTIONS
from accel_state.registry import Registry, entry_points

# Where `words` prints nothing, the shells complete the names of files.
SCRIPTS = {
    "bash": """\
_accel() {
    local IFS=$'\\n'
    COMPREPLY=($(accel completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _accel accel""",
    "zsh": """\
_accel() {
    local -a found=("${(@f)$(accel completion words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
compdef _accel accel""",
    "fish": """\
complete -c accel -a '(accel completion words (commandline -opc)[2..] "$(commandline -ct)" 2>/dev/null)'""",
}


class CompletionCommand:
    """``accel completion``; the scripts that it prints call it."""

    help = "Print what a shell needs to complete commands and flags"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "accel completion {bash,zsh,fish}"
        parser.epilog = (
            'In `~/.bashrc` or `~/.zshrc` (after `compinit`): eval "$(accel completion bash)"\n'
            "In `~/.config/fish/config.fish`: accel completion fish | source"
        )
        parser.add_argument("shell", choices=(*SCRIPTS, "words"), metavar="SHELL", help="bash, zsh or fish")
        parser.add_argument("words", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    def run(self, arguments: argparse.Namespace) -> int:
        if arguments.shell in SCRIPTS:
            show(SCRIPTS[arguments.shell])
        elif found := completions(arguments.words):
            show("\n".join(found))
        return 0


command = CompletionCommand()


def completions(words: Sequence[str]) -> list[str]:
    """Return the completions of the last word; the words before it follow ``accel``."""
    *before, current = words or [""]
    return [
        word for word in _words_after(before, is_flag=current.startswith("-")) if word.startswith(current)
    ]


def _words_after(before: Sequence[str], *, is_flag: bool) -> Iterable[str]:
    names = sorted(point.name for point in entry_points(COMMAND_GROUP))
    if not before:
        return ["--help", "--version"] if is_flag else names
    name, *rest = before
    if name not in names:
        return []
    registry: Registry[Command] = Registry("command", COMMAND_GROUP)
    parser = make_parser(f"accel {name}", registry.get(name))
    for word in rest:
        parser = _actions_of(parser).get(word, parser)
    actions = {flag: action for action in parser._actions for flag in action.option_strings}
    if rest and rest[-1] in actions and actions[rest[-1]].nargs != 0:
        return _values_of(actions[rest[-1]])
    if is_flag:
        return [flag for flag, action in actions.items() if action.help != argparse.SUPPRESS]
    positional = (action for action in parser._actions if not action.option_strings)
    return [*_actions_of(parser)] or [word for action in positional for word in _values_of(action)]


def _actions_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the actions of a command, such as those of ``accel checkpoint``."""
    found = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(found, {})


def _values_of(action: argparse.Action) -> list[str]:
    """Return the words that an argument may be, as far as they are known."""
    settings = (setting for setting in OPTIONS if setting.name == action.dest and setting.choices)
    setting = next(settings, None)
    return [str(word) for word in action.choices or (setting.choices if setting else ()) or ()]
