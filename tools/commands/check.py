"""Check style, types, dependencies, texts and public names, two checks at a time; end with a table."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.checks import CHECKS, UPDATES
from tools.setup.environment import Environment
from tools.workspace import ROOT


def run_checks(
    checks: Mapping[str, Sequence[str | object]], *, at_once: int, environ: Mapping[str, str]
) -> int:
    """Run commands by the names of checks, print what failed and a table, and return how many failed."""

    def run_check(name: str) -> tuple[int, str, str]:
        begun = time.monotonic()
        words = [str(word) for word in checks[name]]
        done = subprocess.run(words, cwd=ROOT, env=dict(environ), capture_output=True, text=True, check=False)
        verdict = "FAILED" if done.returncode else "ok"
        print(f"[dev] {name}: {verdict}", file=sys.stderr, flush=True)
        output = f"--- {name} ---\n{(done.stdout + done.stderr).rstrip()}\n"
        return done.returncode, output, f"  {name:<12}  {time.monotonic() - begun:6.1f} s  {verdict}"

    with ThreadPoolExecutor(at_once) as pool:
        outcomes = list(pool.map(run_check, checks))
    failed = [output for code, output, _ in outcomes if code]
    print("\n".join([*failed, *(line for *_, line in outcomes)]))
    print(f"{len(failed)} of {len(outcomes)} checks failed" if failed else "all checks passed")
    return len(failed)


def main(arguments: argparse.Namespace) -> int:
    environment = Environment().ensure()
    commands = {**CHECKS, **UPDATES} if arguments.update else CHECKS
    checks = {name: (environment.python, *commands[name]) for name in arguments.names or CHECKS}
    at_once = 1 if arguments.update else 2  # two updates may write the same file
    return min(1, run_checks(checks, at_once=at_once, environ=environment.child_environ()))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    names = f"any of: {', '.join(CHECKS)}"
    parser.add_argument("names", nargs="*", metavar="CHECK", default=[], type=known_check, help=names)
    about = f"let {', '.join(UPDATES)} fix what they can: simple findings, layout, snapshots"
    parser.add_argument("--update", action="store_true", help=about)


def known_check(name: str) -> str:
    """Return ``name`` if there is such a check."""
    if name not in CHECKS:
        raise argparse.ArgumentTypeError(f"there is no check `{name}`; known: {', '.join(CHECKS)}")
    return name
