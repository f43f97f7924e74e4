"""Read the command line of ``tools/dev.py`` and run one command."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tools.checks import CHECKS, UPDATES, check
from tools.engines import ENGINES
from tools.environments import Environment
from tools.gpu.command import add_arguments, gpu
from tools.release import release
from tools.running import SetupError, run
from tools.site.build import docs
from tools.suite import test
from tools.wheels import isolated, wheels

EPILOG = """\
Start with `python tools/dev.py demo`: it trains an image classifier on the devices here. Then `… test`.
The first command makes .venv and installs everything (about a minute); later ones start at once.
All generated files are in .venv, .venvs, build, dist, runs and site; `git clean -fdX` removes them.
"""
SEES_AN_ACCELERATOR = "import sys, torch; sys.exit(not torch.accelerator.is_available())"


def demo(arguments: argparse.Namespace) -> int:
    """Train the digits example on the devices of this machine, then check the saved weights."""
    environment, output = Environment("demo").ensure(), "runs/digits"
    environ = environment.child_environ()
    has_none = run([environment.python, "-c", SEES_AN_ACCELERATOR], environ=environ)
    on_the_cpu = ["--cpu", "--num_processes", "2"] if has_none else []  # else a process for each device
    train = [environment.program("accel"), "launch", *on_the_cpu, "docs/examples/digits.py"]
    code = run([*train, "--output_dir", output, *arguments.handed_on], environ=environ)
    return code or run([environment.python, "docs/examples/check_digits.py", output], environ=environ)


def bench(arguments: argparse.Namespace) -> int:
    """Benchmark accel against Accelerate and plain PyTorch, in one environment and one run."""
    environment = Environment("bench").ensure()
    command = [environment.python, "-m", "tools.bench", *arguments.cases, *arguments.handed_on]
    return run(command, environ=environment.child_environ())


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; the first line of the function that runs a command is its help."""
    raw: Any = {"formatter_class": argparse.RawDescriptionHelpFormatter}
    about = "Set up this checkout and work on it. Needs Python 3.11 or newer and nothing else."
    parser = argparse.ArgumentParser(prog="python tools/dev.py", description=about, epilog=EPILOG, **raw)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(run: Callable[[argparse.Namespace], int], epilog: str = "") -> Callable[..., argparse.Action]:
        about = str(run.__doc__).partition("\n")[0]
        command = commands.add_parser(run.__name__, help=about, description=about, epilog=epilog, **raw)
        command.set_defaults(run=run)
        return command.add_argument

    to = "What follows `--` goes to {}: python tools/dev.py {}"
    add(demo, to.format("the example", "demo -- --epochs 3"))
    engines = "\n".join(f"  {name:<10}  {engine.purpose}" for name, engine in ENGINES.items())
    option = add(test, f"engines:\n{engines}\n\n{to.format('pytest', 'test -- -k gather -x')}")
    option("paths", nargs="*", help="what to test, e.g. packages/accel-ops; all if left out")
    option("--engines", nargs="*", type=one_of(ENGINES, "engine"), metavar="NAME",
           help="engines instead, all but disks and restarts if none is named; installs what they need")  # fmt: skip
    option = add(check)
    option(
        "names", nargs="*", metavar="CHECK", type=one_of(CHECKS, "check"), help=f"any of: {', '.join(CHECKS)}"
    )
    option("--update", action="store_true", help=f"let {', '.join(UPDATES)} repair what they can")
    option = add(docs, to.format("mkdocs", "docs -- --verbose"))
    option("--serve", action="store_true", help="serve it, and build it again whenever a page changes")
    option(
        "--install",
        action="store_true",
        help="copy it to where `accel docs` and wheels of accel-launch find it",
    )
    of_torch: Any = {"metavar": "RELEASE", "help": "a release of torch instead of the pinned one, e.g. 2.9"}
    option = add(isolated, to.format("pytest", "isolated accel-ops -- -x"))
    option("packages", nargs="*", metavar="PACKAGE", help="e.g. accel-ops; every package if left out")
    option("--floors", action="store_true", help="install the lowest declared version of each dependency")
    option("--torch", **of_torch)
    option = add(wheels)
    option("--only-build", action="store_true", help="build into dist/ and stop")
    option("--torch", **of_torch)
    option = add(release)
    option("names", nargs="*", metavar="NAME", help="tags, such as accel-data-v0.2.1; with --bump, packages")
    option("--bump", choices=("major", "minor", "patch"),
           help="give packages their next version instead, those with open changes if none is named")  # fmt: skip
    option = add(bench, to.format("tools.bench", "bench CASE -- --rounds 3"))
    option("cases", nargs="*", metavar="CASE", help="files of tools/bench/cases; all if left out")
    add_arguments(add(gpu))
    return parser


def one_of(known: Collection[str], kind: str) -> Callable[[str], str]:
    """Return a parser of a name that is among the ``known`` ones."""

    def parse(name: str) -> str:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no {kind} `{name}`; known: {', '.join(known)}")
        return name

    return parse


def split_at_dashes(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split ``words`` at the first ``--``: our arguments, and the arguments to pass on."""
    at = [*words, "--"].index("--")
    return list(words[:at]), list(words[at + 1 :])


def main(words: Sequence[str]) -> int:
    """Run the command that ``words`` name; return the exit code."""
    ours, handed_on = split_at_dashes(words)
    arguments = build_parser().parse_args(ours)
    arguments.handed_on = handed_on
    try:
        code: int = arguments.run(arguments)
    except (SetupError, subprocess.CalledProcessError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code
