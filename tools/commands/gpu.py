"""Run device tests and measure speed on a GPU; each row goes to a file; a page and a table are generated from it."""

from __future__ import annotations

import argparse
import shutil
import subprocess
from pathlib import Path

from tools.commands.protocol import Command
from tools.gpu.driver import PARTS, Driver
from tools.gpu.interpreter import environ_of
from tools.gpu.results import STORED, append, merged, read
from tools.setup.environment import Environment
from tools.setup.running import SetupError, run
from tools.workspace import ROOT


def gpu(arguments: argparse.Namespace) -> int:
    if arguments.write:
        return _write(arguments.out)
    arguments.commit = arguments.commit or _commit()
    if arguments.python is None:
        environment = Environment().ensure()
        driver = Driver(str(environment.python), environment.child_environ(), arguments)
    elif found := shutil.which(arguments.python):
        python = str(Path(found).absolute())
        driver = Driver(python, environ_of(python), arguments)
    else:
        raise SetupError(f"There is no program `{arguments.python}`. Name a Python that has torch.")
    num_wrong = sum([driver.run_part(part) for part in arguments.part or PARTS])
    print(f"{num_wrong} rows are wrong. Rows: {arguments.out}")
    return int(num_wrong > 0)


def _write(file: Path) -> int:
    """Merge the rows of ``file`` into the stored ones, and update what is generated from them."""
    rows = merged(read(ROOT / STORED), read(file))
    (ROOT / STORED).unlink(missing_ok=True)
    append(ROOT / STORED, rows)
    environment = Environment().ensure()
    command: list[str | Path] = [environment.python, "-m", "tools.checks.gpu_table", "--update"]
    return run(command, cwd=ROOT, environ=environment.child_environ())


def _commit() -> str:
    """Return the short name of the commit, with a plus if files differ from it."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=False).stdout.strip() or "unknown"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("only", nargs="*", metavar="NAME", help="speed cases or paths of tests; all of the part if left out")
    add("--part", action="append", choices=PARTS, help="may be given several times (default: all)")
    add("--out", type=Path, default=Path("build/gpu/rows.jsonl"), metavar="FILE",
        help="file for rows; rows of the same day and commit are not run again")  # fmt: skip
    add("--python", metavar="PROGRAM", help="a Python that has torch, instead of .venv's")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--small", action="store_true", help="tiny models: whether it runs, not how fast")
    add("--commit", help="commit of the measured source, if git does not know")
    add("--limit_s", type=float, default=290, help="start nothing after this time (default: 290)")
    add("--write", action="store_true",
        help="run nothing: write the pages of docs/reference from the rows of --out")  # fmt: skip


command = Command(
    help="test and measure on a GPU, and write the table of it", run=gpu, add_arguments=add_arguments
)
