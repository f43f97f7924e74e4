"""Set up engines and run their tests, one after another."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tools.engines import ENGINES, Engine, marked_files
from tools.engines.debian import install_packages, missing_packages
from tools.running import SetupError, options_in_ci, run, say


def require_root(names: Sequence[str], missing: Sequence[str]) -> None:
    """Raise ``SetupError``, naming what would be installed, if something here needs root and this is not root."""
    needing = [name for name in names if ENGINES[name].needs_root]
    if os.geteuid() == 0 or not (needing or missing):
        return
    reasons = [f"apt-get would install {', '.join(missing)}"] if missing else []
    reasons += [f"{', '.join(needing)} start daemons and make network namespaces"] if needing else []
    raise SetupError(
        f"`--engines` needs root here: {'; '.join(reasons)}."
        " Run it as root, best in a container, or name engines that do not need it."
    )


def set_up_all(engines: Sequence[Engine]) -> list[float]:
    """Set up all engines, two environments at a time, and return the seconds that each took.

    While the installer of one waits for files, the other continues.
    """
    by_environment: dict[str, list[int]] = defaultdict(list)
    for number, engine in enumerate(engines):
        by_environment[engine.environment.name].append(number)
    seconds = [0.0] * len(engines)

    def set_up(numbers: Sequence[int]) -> None:
        for number in numbers:
            begun = time.monotonic()
            engines[number].prepare(engines[number].environment.ensure())
            seconds[number] = time.monotonic() - begun

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(set_up, by_environment.values()))
    return seconds


def run_tests(name: str, handed_on: Sequence[str]) -> int:
    """Run the tests of one engine; a skipped test is a failure."""
    engine = ENGINES[name]
    chosen = ["--engine", name, *marked_files(name)]
    command = [engine.environment.python, "-m", "pytest", *options_in_ci(), *chosen]
    if engine.num_workers > 1:
        command += ["-n", str(engine.num_workers), "--dist", engine.distribution]
    environ = engine.environment.child_environ() | dict(engine.variables)
    return run([*command, *handed_on], environ=environ)


def run_engines(names: Sequence[str], handed_on: Sequence[str]) -> int:
    """Set up the engines and run their tests; return 1 if one failed.

    Everything is set up before the first test: what cannot be installed is known early.
    """
    engines = [ENGINES[name] for name in names]
    missing = missing_packages(package for engine in engines for package in engine.debian)
    require_root(names, missing)
    say(f"engines: {', '.join(names)}")
    if missing:
        install_packages(missing)
    lines, failed = [], []
    for name, setup_s in zip(names, set_up_all(engines), strict=True):
        begun = time.monotonic()
        code = run_tests(name, handed_on)
        verdict = f"FAILED (pytest exit {code})" if code else "ok"
        lines.append(
            f"  {name:<10}  set-up {setup_s:6.1f} s  tests {time.monotonic() - begun:6.1f} s  {verdict}"
        )
        failed += [name] if code else []
    print("\n".join([*lines, f"failed: {', '.join(failed)}" if failed else "all engines passed"]))
    return bool(failed)
