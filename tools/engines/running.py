"""Set up engines and run their tests, one after another."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.engines import load_engine
from tools.engines.debian import install_packages, missing_packages
from tools.engines.protocol import Engine
from tools.setup.environment import Environment
from tools.setup.running import SetupError, run, say
from tools.workspace import ROOT


@dataclass(frozen=True)
class Outcome:
    """The result of one engine's tests."""

    name: str
    setup_s: float
    tests_s: float
    code: int


def require_root(engines: Sequence[Engine], missing: Sequence[str]) -> None:
    """Raise ``SetupError``, naming what would be installed, if something here needs root and this is not root."""
    needing = [engine.name for engine in engines if engine.needs_root]
    if os.geteuid() == 0 or not (needing or missing):
        return
    reasons = [f"apt-get would install {', '.join(missing)}"] if missing else []
    reasons += [f"{', '.join(needing)} start daemons and make network namespaces"] if needing else []
    raise SetupError(
        f"`--engines` needs root here: {'; '.join(reasons)}."
        " Run it as root, best in a container, or name engines that do not need it."
    )


def set_up(engine: Engine) -> Environment:
    """Make what the tests of one engine need, its Debian packages excepted."""
    environment = engine.environment.ensure()
    engine.prepare(environment)
    return environment


def set_up_all(engines: Sequence[Engine]) -> list[tuple[Engine, Environment, float]]:
    """Set up all engines, two environments at a time: while pip of one waits for files, the other continues.

    Returns:
        Each engine in the given order, with its environment and the seconds that it took.
    """
    by_environment: dict[str, list[Engine]] = {}
    for engine in engines:
        by_environment.setdefault(engine.environment.name, []).append(engine)

    def set_up_timed(engine: Engine) -> tuple[Engine, Environment, float]:
        begun = time.monotonic()
        return engine, set_up(engine), time.monotonic() - begun

    with ThreadPoolExecutor(2) as pool:
        groups = pool.map(
            lambda members: [set_up_timed(member) for member in members], by_environment.values()
        )
        ready = {
            engine.name: (engine, environment, setup_s)
            for group in groups
            for engine, environment, setup_s in group
        }
    return [ready[engine.name] for engine in engines]


def run_tests(engine: Engine, environment: Environment, handed_on: Sequence[str]) -> int:
    """Run the tests of one engine; a skipped test is a failure."""
    command: list[str | Path] = [
        environment.python,
        "-m",
        "pytest",
        "--engine",
        engine.name,
        *engine.tests,
        *(["-n", str(engine.num_workers)] if engine.num_workers > 1 else []),
        *(["--dist", "loadfile"] if engine.keep_files_together else []),
        *handed_on,
    ]
    return run(command, cwd=ROOT, environ=environment.child_environ() | dict(engine.variables))


def table(outcomes: Sequence[Outcome], *, total_s: float) -> str:
    """Return the summary, one line per engine."""
    lines = [
        f"  {each.name:<10}  set-up {each.setup_s:6.1f} s  tests {each.tests_s:6.1f} s  "
        + ("ok" if each.code == 0 else f"FAILED (pytest exit {each.code})")
        for each in outcomes
    ]
    failed = [each.name for each in outcomes if each.code != 0]
    verdict = f"failed: {', '.join(failed)}" if failed else "all engines passed"
    return "\n".join([*lines, f"{verdict}, {total_s:.0f} s"])


def run_engines(names: Sequence[str], handed_on: Sequence[str]) -> int:
    """Set up the engines and run their tests; return 1 if one failed.

    Everything is set up before the first test: what cannot be installed is known early.
    """
    engines = [load_engine(name) for name in names]
    missing = missing_packages(package for engine in engines for package in engine.debian)
    require_root(engines, missing)
    say(f"engines: {', '.join(names)}")
    if missing:
        install_packages(missing)
    begun_all = time.monotonic()
    outcomes = []
    for engine, environment, setup_s in set_up_all(engines):
        begun = time.monotonic()
        code = run_tests(engine, environment, handed_on)
        outcomes.append(Outcome(engine.name, setup_s, time.monotonic() - begun, code))
    print(table(outcomes, total_s=time.monotonic() - begun_all))
    return max(outcome.code for outcome in outcomes)
