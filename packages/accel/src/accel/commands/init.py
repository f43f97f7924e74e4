"""Copy an example into a folder of yours, to start from."""

from __future__ import annotations

import argparse
import ast
import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

import accel
from accel_launch import write_basic_config
from accel_launch.messages import show
from accel_state.errors import ConfigError, NotAvailableError, UnknownNameError

CONFIG = "accel.yaml"
IN_CHECKOUT = "docs/examples/"
_NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")


class InitCommand:
    """``accel init``; copies one example and writes a config for this machine beside it."""

    help = "Copy an example into a folder of yours, to start from"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add which example, and where it goes."""
        parser.add_argument("example", nargs="?", help="its name; without one the examples are listed")
        parser.add_argument("folder", nargs="?", type=Path, help="a new or empty folder; default: the name")

    def run(self, arguments: argparse.Namespace) -> int:
        """List the examples, or copy one and say how to run it."""
        examples = find_examples()
        if arguments.example is None:
            width = max(map(len, examples))
            for name, path in examples.items():
                show(f"{name:{width}}  {summary_of(path)}")
            show("\naccel init NAME copies one into a folder.")
            return 0
        name = arguments.example.removesuffix(".py")
        if name not in examples:
            raise UnknownNameError.of("example", name, examples)
        folder = arguments.folder or Path(name)
        script = copy_example(examples[name], folder)
        write_basic_config(save_location=str(folder / CONFIG))
        show(f"{summary_of(examples[name])}\n")
        show(f"cd {shlex.quote(str(folder))}")
        scripts = [*imported_by(examples[name]), script]  # what it continues is run first
        packages = [line for one in scripts for line in installations(one)]
        for line in (*packages, *map(command_of, scripts)):
            show(line)
        return 0


command = InitCommand()


def find_examples(folder: Path | None = None) -> Mapping[str, Path]:
    """Return the examples of the installed package by their names: a script, a notebook, or a folder with `train.py`.

    Raises:
        NotAvailableError: If the package came without them.
    """
    package = Path(accel.__file__).parent
    places = (
        [folder] if folder is not None else [package / "examples", package.parents[3] / "docs" / "examples"]
    )
    for place in places:
        if place.is_dir():
            found = [
                path
                for path in place.iterdir()
                if path.suffix in (".py", ".ipynb") or (path / "train.py").is_file()
            ]
            return {path.stem: path for path in sorted(found)}
    raise NotAvailableError(
        f"This installation of accel has no examples in `{package / 'examples'}`. "
        "Install `accel` from its wheel anew."
    )


def copy_example(example: Path, folder: Path) -> Path:
    """Copy an example into a new or empty folder, and return the script or notebook to run.

    Scripts that it imports, or that import it, go along. Commands in docstrings name the copy, not the checkout's file.

    Raises:
        ConfigError: If there is something in the folder, or nothing can be written there.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            reason = "is there and not empty" if folder.is_dir() else "is a file"
            raise ConfigError(
                f"`{folder}` {reason}. Name another folder: `accel init {example.stem} FOLDER`."
            )
        if example.is_dir():
            shutil.copytree(example, folder, ignore=_NOT_COPIED, dirs_exist_ok=True)
            return folder / "train.py"
        folder.mkdir(parents=True, exist_ok=True)
        others = (path for path in example.parent.glob("*.py") if _imports(path, {example.stem}))
        for path in (example, *others, *imported_by(example)):
            text = path.read_text(encoding="utf-8").replace(IN_CHECKOUT, "")
            (folder / path.name).write_text(text, encoding="utf-8")
        return folder / example.name
    except OSError as error:
        reason = error.strerror or error.args[0][0][2]  # the first that `copytree` collected
        raise ConfigError(f"`{folder}` cannot be written: {reason}. Name another folder.") from error


def imported_by(example: Path) -> list[Path]:
    """Return the examples that a script imports: it goes on with what they have made."""
    return [path for path in sorted(example.parent.glob("*.py")) if _imports(example, {path.stem})]


def command_of(script: Path) -> str:
    """Return the command that runs a script or notebook; one that launches processes itself is no launch."""
    if not is_script(script):
        return f"jupyter lab {script.name}"
    if not _commands(script, "accel launch"):
        return f"python {script.name}"
    return f"accel launch --config_file {CONFIG} {script.name}"


def is_script(path: Path) -> bool:
    return path.suffix == ".py"


def summary_of(example: Path) -> str:
    """Return what an example shows, in one line."""
    return _text_of(example).partition("\n")[0].strip("# ")


def installations(script: Path) -> list[str]:
    """Return the commands that install what the script needs beside accel, as its docstring names them."""
    return _commands(script, "pip install")


def _commands(script: Path, start: str) -> list[str]:
    lines = (line.strip() for line in _text_of(script).splitlines())
    return [line for line in lines if line.startswith(start)]


def _imports(example: Path, names: set[str]) -> bool:
    """Return whether a script imports one of these modules."""
    if not example.is_file() or not is_script(example):
        return False
    statements = ast.walk(ast.parse(example.read_text(encoding="utf-8")))
    return any(isinstance(one, ast.ImportFrom) and one.module in names for one in statements)


def _text_of(example: Path) -> str:
    """Return the docstring of a script, or the first cell of a notebook."""
    if example.is_dir():
        example = example / "train.py"
    text = example.read_text(encoding="utf-8")
    if is_script(example):
        return ast.get_docstring(ast.parse(text)) or ""
    return "".join(json.loads(text)["cells"][0]["source"])
