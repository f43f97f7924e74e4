"""Start programs, and print progress and duration."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

GRACE_S = 20.0
"""How long a program may take to end after SIGTERM."""
TIMED_OUT = 124
"""The exit code of a program that was ended since it took too long, as of `timeout`."""


class SetupError(Exception):
    """The set-up cannot continue. The text is one line with the next step."""


def say(text: str) -> None:
    """Print one line of progress, at once, on standard error: standard output belongs to the program."""
    print(f"[dev] {text}", file=sys.stderr, flush=True)


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Say ``what`` is begun, and after it how long it took."""
    say(f"{what} …")
    begun = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - begun:.1f} s")


def environment_with(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this process's environment for a child: one thread by default, and ``changes``."""
    environ = dict(os.environ)
    environ.setdefault("OMP_NUM_THREADS", "1")
    environ.pop("PYTHONPATH", None)
    environ.pop("PYTHONHOME", None)
    # Tests start Python often, which would compile our sources each time.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ.update(changes or {})
    return environ


def run(
    command: Sequence[object],
    *,
    cwd: Path,
    environ: Mapping[str, str] | None = None,
    limit_s: float | None = None,
) -> int:
    """Run ``command`` in the foreground and return its exit code. It ends when this process is ended.

    After ``limit_s`` it is ended, with a message; the exit code is then 124.
    """
    words = [str(word) for word in command]
    say("$ " + shlex.join(words))
    with subprocess.Popen(words, cwd=cwd, env=dict(environ or environment_with())) as process:
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            say(f"`{Path(words[0]).name}` was ended: it took longer than {limit_s:g} s. Something hangs.")
            return TIMED_OUT
        except KeyboardInterrupt:  # Ctrl-C reached it as well: wait until it has ended its processes
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            end(process)
            raise
        except BaseException:
            end(process)
            raise


def end(process: subprocess.Popen[bytes], *, grace_s: float = GRACE_S) -> None:
    """Ask ``process`` to end and wait for it; kill it if it takes too long."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()


def end_on_sigterm() -> None:
    """Make SIGTERM raise ``SystemExit``, so that programs in the foreground are ended too."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
