"""Start programs, and print what is started."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from tools.workspace import ROOT

GRACE_S = 20.0
"""How long a program may take to end after SIGTERM."""
TIMED_OUT = 124
"""The exit code of a program that was ended since it took too long, as of `timeout`."""

SEED = 47
"""Of the order of tests in CI, where a commit that was green must stay so. Every night another order is tried."""


class SetupError(Exception):
    """The set-up cannot continue. The text is one line with the next step."""


def say(text: str) -> None:
    """Print one line of progress, at once, on standard error: standard output belongs to the program."""
    print(f"[dev] {text}", file=sys.stderr, flush=True)


def environment_with(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a child: one thread by default, and ``changes``."""
    environ = {"OMP_NUM_THREADS": "1", **os.environ, **(changes or {})}
    # Tests start Python often, which would compile our sources each time.
    left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE"} - (changes or {}).keys()
    return {name: value for name, value in environ.items() if name not in left_out}


def is_ci() -> bool:
    """Return True if a CI service runs this, which sets ``CI``."""
    return os.environ.get("CI", "").lower() in ("1", "true")


def options_in_ci() -> list[str]:
    """Return pytest's arguments in CI: a skip for an unknown reason is a failure, and slow tests are listed."""
    return ["--no-unexpected-skips", "--durations=20", f"--randomly-seed={SEED}"] if is_ci() else []


def run(
    command: Sequence[object], *, environ: Mapping[str, str] | None = None, limit_s: float | None = None
) -> int:
    """Run ``command`` in the foreground and return its exit code. It ends when this process is ended.

    After ``limit_s`` it is ended, with a message; the exit code is then 124.
    """
    words = [str(word) for word in command]
    say("$ " + shlex.join(words))
    with subprocess.Popen(words, cwd=ROOT, env=environ or environment_with()) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            say(f"`{Path(words[0]).name}` was ended: it took longer than {limit_s:g} s. Something hangs.")
            return TIMED_OUT
        except KeyboardInterrupt:  # Ctrl-C reached it as well: wait until it has ended its processes
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            raise
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_S)
                process.kill()


def must_run(
    command: Sequence[object], environ: Mapping[str, str] | None = None, *, cwd: Path = ROOT
) -> None:
    """Run a program of the set-up. Raises ``SetupError`` that names it; the program's output is above."""
    words = [str(word) for word in command]
    if subprocess.run(words, cwd=cwd, env=environ or environment_with(), check=False).returncode != 0:
        raise SetupError(f"`{shlex.join(words)}` failed; the reason is above.")


def end_on_sigterm() -> None:
    """Make SIGTERM raise ``SystemExit``, so that programs in the foreground are ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
