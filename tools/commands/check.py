"""Run the checks one after another, carry on after a failure, and end with a table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass

from tools.checks import CHECKS, UPDATES
from tools.commands.protocol import Command
from tools.setup.environment import Environment
from tools.setup.presets import development
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
    words = [str(environment.python), *(UPDATES if fix and name in UPDATES else CHECKS)[name]]
    done = subprocess.run(
        words, cwd=ROOT, env=environment.child_environ(), capture_output=True, text=True, check=False
    )
    return Outcome(name, time.monotonic() - begun, done.returncode == 0, (done.stdout + done.stderr).rstrip())


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
    environment = development().ensure()
    outcomes = []
    for name in arguments.names or CHECKS:
        outcome = run_check(name, environment, fix=arguments.update)
        outcomes.append(outcome)
        if not outcome.passed:
            print(f"--- {name} ---\n{outcome.output}\n", flush=True)
        else:
            print(f"[dev] {name}: ok", file=sys.stderr, flush=True)
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
    help="lint, format, types, layers, cycles, dependencies, structure, docstrings, links, public surface",
    run=check,
    add_arguments=add_arguments,
)
