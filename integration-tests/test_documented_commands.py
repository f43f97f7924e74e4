"""Commands and files on the pages of the documentation are understood by the programs they are for.

Launches are planned (``--dry-run``), what is shown of `accel config show` is compared with what it prints, and other
commands are read by their parsers.
"""

import ast
import re
import shlex
import sys
import tomllib
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import simulated_ranks
from documented import DOCS, LANGUAGES, PAGES, ROOT, UnknownBlockError, all_blocks, excepted_blocks, fences

from accel_launch.cli import COMMAND_GROUP, main, make_parser, run_command
from accel_launch.config.file import read_config
from accel_launch.config.templates import read_template, template_names
from accel_state.registry import Registry
from tools.front_door import build_parser, split_at_dashes
from tools.workspace import read_packages

COMMANDS = Registry("command", COMMAND_GROUP)
OTHER_PROGRAMS = {"cat", "cp", "eval", "kill"}
"""Programs whose arguments are the reader's; those of `pip`, `accel`, `srun`, `docker`, `python` are looked at."""
SLURM_OPTIONS = {"nodes", "ntasks-per-node", "gpus-per-node", "gpus-per-task"}
NEEDS_OF_LAUNCHES = {"--gpu_ids": "asks for GPUs, but none is found"}
"""Flags for machines that a test has not, and what the launcher answers without them."""
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
        case ["gh", "release", "download", *_] | ["gh", "attestation", "verify", *_]:
            pass  # of a release
        case ["python", "-m", module, *_] if module.startswith("tools."):
            assert find_spec(module)
        case ["srun", *rest]:
            assert {
                word.partition("=")[0].removeprefix("--") for word in rest if word.startswith("--")
            } <= SLURM_OPTIONS
            check([word for word in rest if not word.startswith("--")])
        case ["source", ".venv/bin/activate"]:
            pass  # after a command of `tools/dev.py`, which makes it
        case ["docker", "build", "-t", "train", "."]:
            pass
        case ["docker", "run", *rest]:
            assert "train" in rest  # the image that was built
            if command := rest[rest.index("train") + 1 :]:
                check(command)
        case ["python", "tools/dev.py", *rest]:
            build_parser().parse_args(split_at_dashes(rest)[0])
        case ["python", script, *_] if script.startswith("docs/"):
            assert (ROOT / script).is_file()
        case ["python", script, *_] if (DOCS / "examples" / script).is_file():
            pass
        case ["python", "train.py"] | [
            "python",
            "runs/checkpoint/zero_to_fp32.py",
            "runs/checkpoint",
            "runs/fp32",
        ]:
            pass  # the script of the reader; the one that DeepSpeed writes, which test_deepspeed_checkpoints.py calls
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


def launches():
    """Yield the words of each launch on the pages, and where it is."""
    for block in all_blocks("bash"):
        for words in command_lines(block.text):
            if words[:2] == ["accel", "launch"] and "--help" not in words:
                yield pytest.param(words[2:], id=f"{block}: {shlex.join(words)}")


@pytest.mark.parametrize("words", list(launches()))
def test_launches_can_be_planned(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_TOKEN", "of a test")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hosts.txt").write_text("host1 slots=4\nhost2 slots=4\n", encoding="utf-8")
    (tmp_path / "my.yaml").write_text("num_processes: 2\n", encoding="utf-8")
    for template in template_names():
        (tmp_path / f"{template}.yaml").write_text(read_template(template), encoding="utf-8")
    (sagemaker,) = (block.text for block in all_blocks("yaml") if "AMAZON_SAGEMAKER" in block.text)
    (tmp_path / "sagemaker.yaml").write_text(sagemaker, encoding="utf-8")
    for name in read_packages():
        (tmp_path / f"{name.replace('-', '_')}-0.2.0-py3-none-any.whl").touch()
    for word in words:
        if word.endswith(".py"):
            Path(word).parent.mkdir(parents=True, exist_ok=True)
            Path(word).touch()
    status, errors = main(["launch", "--dry-run", *words]), capsys.readouterr().err
    missing = [answer for flag, answer in NEEDS_OF_LAUNCHES.items() if flag in words and answer in errors]
    assert missing or (status, errors) == (0, "")


@pytest.mark.parametrize("block", all_blocks("console"), ids=str)
def test_commands_print_what_the_page_shows(block, tmp_path, monkeypatch, capsys):
    """The page may leave lines out; the columns have the widths that the shown ones need."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}'
    )
    command, *shown = block.text.splitlines()
    program, *words = shlex.split(command.removeprefix("$ "))
    assert (program, main(words)) == ("accel", 0)
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert not [line for line in shown if line.split() not in printed], printed


def questions():
    """Yield the words of each command of ours that answers and changes nothing, and where it is."""
    for block in all_blocks("bash"):
        for words in command_lines(block.text):
            if {"--fit", "./llama-3-8b"} & set(words):
                continue  # hundreds of layouts and the import of transformers take long; test_plan.py has both
            if words[0] == "accel" and (
                words[1] in ("env", "estimate-memory", "plan") or words[1:3] == ["config", "show"]
            ):
                yield pytest.param(words[1:], id=f"{block}: {shlex.join(words)}")


NEEDS_OF_QUESTIONS = {
    "bert-base-cased": "The Hub cannot be reached",
    "timm/resnet50": "needs the package `timm`",
}
"""Models that a test has not, and what the command answers without them."""


@pytest.mark.parametrize("words", list(questions()))
def test_questions_are_answered(words, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "my_package", types.ModuleType("my_package"))
    monkeypatch.setitem(sys.modules, "my_package.models", simulated_ranks)  # they have plans, as a reader's
    monkeypatch.setattr(simulated_ranks, "build", simulated_ranks.Net, raising=False)
    status = main(words)
    printed, errors = capsys.readouterr()
    missing = [answer for model, answer in NEEDS_OF_QUESTIONS.items() if model in words and answer in errors]
    assert missing or (status == 0 and printed), errors


def versions_of(text):
    """Return a piece of Python before and after the change that a block shows."""
    lines = [line for line in text.splitlines() if line]
    assert all(line[:2] in ("+ ", "- ", "  ") for line in lines)
    return ["\n".join(line[2:] for line in lines if line[0] != sign) for sign in "+-"]


@pytest.mark.parametrize("block", all_blocks("diff"), ids=str)
def test_both_sides_of_a_change_are_python(block):
    before, after = map(ast.parse, versions_of(block.text))
    assert ast.dump(before) != ast.dump(after)
    for node in ast.walk(after):
        if isinstance(node, ast.ImportFrom):
            exec(ast.unparse(node), {})


@pytest.mark.parametrize("block", all_blocks("dockerfile"), ids=str)
def test_lines_of_a_dockerfile_are_understood(block):
    instructions = [line.split(maxsplit=1) for line in block.text.replace("\\\n", " ").splitlines()]
    assert {name for name, _ in instructions} <= {"FROM", "COPY", "RUN", "WORKDIR", "CMD"}
    installed = {
        word[2:] for name, rest in instructions if name == "RUN" for word in rest.split() if word[:2] == "./"
    }
    assert installed == read_packages().keys()
    (command,) = (ast.literal_eval(rest) for name, rest in instructions if name == "CMD")
    check(command)


@pytest.mark.parametrize("block", all_blocks("text"), ids=str)
def test_what_is_only_shown_is_no_command(block):
    assert not re.search(
        r"^(?:[$>] |(?:accel|pip|python|srun|sbatch|torchrun|docker|kubectl) [a-z-])",
        block.text,
        re.MULTILINE,
    )


def test_what_is_not_run_is_python_with_names_that_exist():
    for block in excepted_blocks():
        assert block.language == "python", (
            f"{block}: only Python may be left out: other languages are read, not run"
        )
        for node in ast.walk(ast.parse(block.text)):
            if isinstance(node, ast.ImportFrom):
                exec(ast.unparse(node), {})


@pytest.mark.parametrize("block", [each for page in PAGES for each in fences(page) if each.run_by], ids=str)
def test_what_another_file_runs_is_named_there(block):
    assert block.page.name in (ROOT / str(block.run_by)).read_text(encoding="utf-8")


CODE_IN_DOCSTRINGS = {"accel.drop_in": "packages/accel/tests/drop_in/test_finder.py"}
"""Modules whose docstrings have blocks of code, which the reference shows, and the tests that run the same."""


def test_code_in_docstrings_is_run():
    found = set()
    for package in read_packages().values():
        for name, file in package.modules():
            text = file.read_text(encoding="utf-8")
            for node in ast.walk(ast.parse(text)) if re.search(r">>> |```|::$", text, re.MULTILINE) else ():
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    docstring = ast.get_docstring(node) or ""
                    if re.search(r"^ *(?:>>> |```)|::$", docstring, re.MULTILINE):
                        found.add(name)
    assert found == CODE_IN_DOCSTRINGS.keys()
    for name, tests in CODE_IN_DOCSTRINGS.items():
        assert f"import {name}" in (ROOT / tests).read_text(encoding="utf-8")


def test_every_block_is_of_a_language_that_is_looked_at():
    assert {block.language for page in PAGES for block in fences(page)} <= LANGUAGES.keys()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```py\nx\n```\n", "write one of"),
        ("```\nx\n```\n", "write one of"),
        ("- a\n\n  ```python\n  x\n  ```\n", "not indented"),
        ("~~~python\nx\n~~~\n", "write one of"),
        ("```python\nx\n", "never closed"),
        ("<!-- not run: late -->\n\n```python\nx\n```\n", "above no block"),
    ],
)
def test_a_fence_that_no_test_would_look_at_is_an_error(text, problem, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(UnknownBlockError, match=problem):
        fences(page)


@pytest.mark.parametrize("block", all_blocks("yaml"), ids=str)
def test_config_files_are_read(block, tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(block.text, encoding="utf-8")
    assert read_config(file).values


def test_config_files_that_begin_like_a_template_are_that_template():
    templates = {text.splitlines()[0]: text for text in map(read_template, template_names())}
    shown = [block for block in all_blocks("yaml") if block.text.splitlines()[0] in templates]
    assert shown
    for block in shown:
        assert block.text == templates[block.text.splitlines()[0]], block


@pytest.mark.parametrize("block", all_blocks("toml"), ids=str)
def test_entry_points_are_read_by_a_package(block):
    """Groups of entry points are those that some package reads."""
    groups = tomllib.loads(block.text)["project"]["entry-points"]
    code = [
        file.read_text(encoding="utf-8")
        for package in read_packages().values()
        for _, file in package.modules()
    ]
    assert all(any(f'"{group}"' in text for text in code) for group in groups)


def test_pages_have_commands_and_files():
    assert len(all_blocks("bash")) > 30
    assert all_blocks("yaml")
    assert all_blocks("toml")
