"""Run device tests and measure speed on a GPU; each row goes to a file; a page and a table are generated from it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tools.commands.protocol import Command
from tools.gpu import results
from tools.gpu.driver import PARTS, Driver
from tools.gpu.interpreter import environ_of
from tools.setup.environment import Environment
from tools.setup.running import SetupError, run
from tools.workspace import ROOT


def gpu(arguments: argparse.Namespace) -> int:
    if arguments.write:
        results.write(arguments.out)
        return _update("gpu_table")
    found = arguments.python and shutil.which(arguments.python)
    if arguments.python and not found:
        raise SetupError(f"There is no program `{arguments.python}`. Name a Python that has torch.")
    python = str(Path(found).absolute() if found else Environment().ensure().python)
    driver = Driver(
        python=python,
        environ=environ_of(python) if found else Environment().child_environ(),
        out=arguments.out.resolve(),
        device=arguments.device,
        is_small=arguments.small,
        commit=arguments.commit or _commit(),
        limit_s=arguments.limit_s,
        only=arguments.only,
    )
    num_wrong = sum([driver.run_part(part) for part in arguments.part or PARTS])
    print(f"{num_wrong} rows are wrong. Rows: {arguments.out}")
    return int(num_wrong > 0)


def _update(check: str) -> int:
    environment = Environment().ensure()
    command: list[str | Path] = [environment.python, "-m", f"tools.checks.{check}", "--update"]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def _commit() -> str:
    """Return the short name of the commit, with a plus if files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        print("The commit is unknown: name it with `--commit`.", file=sys.stderr)
        return "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "only", nargs="*", metavar="NAME", help="speed cases or paths of tests; all of the part if left out"
    )
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="may be given several times (default: all)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu/rows.jsonl"), metavar="FILE",
                        help="file for rows; rows of the same day and commit are not run again")  # fmt: skip
    parser.add_argument("--python", metavar="PROGRAM", help="a Python that has torch, instead of .venv's")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny models: whether it runs, not how fast")
    parser.add_argument("--commit", help="commit of the measured source, if git does not know")
    parser.add_argument(
        "--limit_s", type=float, default=290, help="start nothing after this time (default: 290)"
    )
    parser.add_argument("--write", action="store_true",
                        help="run nothing: write the pages of docs/reference from the rows of --out")  # fmt: skip


command = Command(
    help="test and measure on a GPU, and write the table of it", run=gpu, add_arguments=add_arguments
)
