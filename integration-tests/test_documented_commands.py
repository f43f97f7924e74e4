"""Commands and files on the pages of the documentation are understood by the programs they are for."""

import ast
import re
import shlex
import tomllib

import pytest
from documented import DOCS, ROOT, all_blocks

from accel_launch.cli import run_command
from accel_launch.commands.parsing import make_parser
from accel_launch.commands.protocol import COMMAND_GROUP
from accel_launch.config.file import read_config
from accel_state.registry import Registry
from tools.front_door import build_parser, split_at_dashes
from tools.workspace import read_packages

COMMANDS = Registry("command", COMMAND_GROUP)
OTHER_PROGRAMS = {"cat", "kill", "python"}
"""Programs whose arguments are files of the reader's; `pip`, `accel` and our own tools are looked at."""
HERE_DOCUMENT = re.compile(r"(<<'(\w+)'\n).*?^\2$", re.MULTILINE | re.DOTALL)


def command_lines(text):
    """Yield the words of each command of a shell block, without variables that are set for it."""
    joined = HERE_DOCUMENT.sub("\n", text).replace("\\\n", " ")
    for line in joined.splitlines():
        words = shlex.split(line, comments=True)
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if words:
            yield words


def check_accel(words):
    """Let the parser of a subcommand of ``accel`` read ``words``."""
    name, *arguments = words
    if "--help" in arguments:
        assert run_command(name, arguments) == 0
        return
    parser = make_parser(f"accel {name}", COMMANDS.get(name))
    _, unknown = parser.parse_known_args(arguments)
    assert not unknown


def check_pip(words):
    """See that the packages of ours that would be installed are there, with their extras."""
    packages = {f"packages/{name}": package for name, package in read_packages().items()}
    for word in words:
        found = re.fullmatch(r"(?:\./)?(packages/[\w-]+)(?:\[([\w,-]+)\])?", word)
        if found:
            assert found[1] in packages
            assert set(filter(None, (found[2] or "").split(","))) <= set(packages[found[1]].extras)


def check(words):
    """Raise unless the program that ``words`` start with is known, and understands the others."""
    match words:
        case ["accel", *rest]:
            check_accel(rest)
        case ["pip", "install", *rest]:
            check_pip(rest)
        case ["python", "tools/dev.py", *rest]:
            build_parser().parse_args(split_at_dashes(rest)[0])
        case ["python", script, *_] if script.startswith("docs/"):
            assert (ROOT / script).is_file()
        case [program, *_]:
            assert program in OTHER_PROGRAMS, f"nobody knows `{program}`; mark the block with a reason"


@pytest.mark.parametrize("block", all_blocks("bash"), ids=str)
def test_commands_are_understood(block, capsys):
    for words in command_lines(block.text):
        try:
            check(words)
        except SystemExit:
            pytest.fail(f"{shlex.join(words)}\n{capsys.readouterr().err}")


def examples_commands():
    """Yield the name of an example and each command that its docstring gives."""
    for script in sorted((DOCS / "examples").glob("*.py")):
        docstring = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8")))
        for line in docstring.replace("\\\n", " ").splitlines():
            if re.match(r" *(accel|python) \S+ ?", line):
                yield script.name, re.split(r" {3,}", line.strip())[0].partition("<")[0]


@pytest.mark.parametrize(("name", "line"), list(examples_commands()))
def test_commands_of_examples_are_understood(name, line, capsys):
    for words in command_lines(line):
        check(words)


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_config_files_are_read(block, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert read_config(file).values


@pytest.mark.parametrize("block", all_blocks("toml"), ids=str)
def test_toml_is_read(block):
    assert tomllib.loads(block.text)


def test_pages_have_commands_and_files():
    assert len(all_blocks("bash")) > 30
    assert all_blocks("yaml")
    assert all_blocks("toml")
