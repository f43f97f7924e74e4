"""Run the checks, two at a time, carry on after a failure, and end with a table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tools.checks import CHECKS, UPDATES
from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.workspace import ROOT


@dataclass(frozen=True)
class Outcome:
    """The result of one check."""

    name: str
    duration_s: float
    passed: bool
    output: str


def run_check(name: str, environment: Environment, *, fix: bool) -> Outcome:
    begun = time.monotonic()
    command = [str(environment.python), *(UPDATES if fix and name in UPDATES else CHECKS)[name]]
    done = subprocess.run(
        command, cwd=ROOT, env=environment.child_environ(), capture_output=True, text=True, check=False
    )
    outcome = Outcome(
        name, time.monotonic() - begun, done.returncode == 0, (done.stdout + done.stderr).rstrip()
    )
    print(f"[dev] {name}: {'ok' if outcome.passed else 'FAILED'}", file=sys.stderr, flush=True)
    return outcome


def table(outcomes: list[Outcome]) -> str:
    """Return the summary, one line per check."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [
        f"  {each.name:<{width}}  {each.duration_s:6.1f} s  {'ok' if each.passed else 'FAILED'}"
        for each in outcomes
    ]
    failed = [each.name for each in outcomes if not each.passed]
    verdict = (
        f"{len(failed)} of {len(outcomes)} checks failed: {', '.join(failed)}"
        if failed
        else "all checks passed"
    )
    return "\n".join([*lines, verdict])


def check(arguments: argparse.Namespace) -> int:
    environment = Environment().ensure()
    with ThreadPoolExecutor(1 if arguments.update else 2) as pool:  # two updates may write the same file
        outcomes = list(
            pool.map(
                lambda name: run_check(name, environment, fix=arguments.update), arguments.names or CHECKS
            )
        )
    for outcome in outcomes:
        if not outcome.passed:
            print(f"--- {outcome.name} ---\n{outcome.output}\n")
    print(table(outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def known_check(name: str) -> str:
    """Return ``name`` if there is such a check."""
    if name not in CHECKS:
        raise argparse.ArgumentTypeError(f"there is no check `{name}`; known: {', '.join(CHECKS)}")
    return name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="CHECK", type=known_check, help=f"any of: {', '.join(CHECKS)}"
    )
    parser.add_argument(
        "--update",
        action="store_true",
        help=f"let {', '.join(UPDATES)} fix what they can: simple findings, layout, snapshots",
    )


command = Command(
    help="lint, format, types, layers, cycles, dependencies, structure, docstrings, links, workflows, public surface",
    run=check,
    add_arguments=add_arguments,
)
