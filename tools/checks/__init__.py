"""What ``tools/dev.py check`` runs: programs that others keep, and what none of them checks."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.environments import Environment
from tools.workspace import ROOT

_ZIZMOR = "import os, sys; os.execvp('zizmor', ['zizmor', *sys.argv[1:]])"
_LINT_IMPORTS = "from importlinter.cli import lint_imports_command as command; command()"

CHECKS: Mapping[str, tuple[str, ...]] = {
    "lint": ("-m", "ruff", "check", "--quiet", "."),
    "formatting": ("-m", "ruff", "format", "--check", "--quiet", "."),
    "annotations": ("-m", "mypy", "--no-error-summary"),
    "layers": ("-c", _LINT_IMPORTS, "--no-cache", "--no-logo"),
    "workflows": ("-c", _ZIZMOR, "--offline", "--quiet", "--pedantic", ".github/workflows"),
    "rules": ("-m", "pytest", "-q", "--noconftest", "-p", "no:randomly", "tools/tests/rules"),
    "surface": ("-m", "tools.checks.surface"),
    "ceilings": ("-m", "tools.checks.ceilings"),
    "gpu_table": ("-m", "tools.gpu.results"),
}
"""Arguments of Python, in the root of the checkout, by the name of a check."""
UPDATES: Mapping[str, tuple[str, ...]] = {
    "lint": ("-m", "ruff", "check", "--quiet", "--fix", "."),
    "formatting": ("-m", "ruff", "format", "--quiet", "."),
    **{name: (*CHECKS[name], "--update") for name in ("surface", "ceilings", "gpu_table")},
}
"""The checks that can repair what they find, and how."""


def check(arguments: argparse.Namespace) -> int:
    """Check style, types, dependencies, texts and public names, two checks at a time; end with a table."""
    environment = Environment().ensure()
    commands = {**CHECKS, **UPDATES} if arguments.update else CHECKS
    checks = {name: (str(environment.python), *commands[name]) for name in arguments.names or CHECKS}
    at_once = 1 if arguments.update else 2  # two updates may write the same file
    return min(1, run_checks(checks, at_once=at_once, environ=environment.child_environ()))


def run_checks(checks: Mapping[str, Sequence[str]], *, at_once: int, environ: Mapping[str, str]) -> int:
    """Run commands by the names of checks, print what failed and a table, and return how many failed."""

    def run_check(name: str) -> tuple[int, str, str]:
        begun = time.monotonic()
        done = subprocess.run(
            checks[name], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
        )
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
