"""Run pip: its output goes to a log, its progress to one line on the terminal."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from tools.setup.failures import SetupError, explain_pip_failure
from tools.setup.running import say

REFRESH_S = 1.0


def pip_install(python: Path) -> list[str]:
    """Return the start of a command that installs.

    Modules are compiled when they are imported: of those that libraries bring, few ever are, and to compile them all
    takes longer than to download and to unpack them.
    """
    options = ["--disable-pip-version-check", "--no-input", "--no-compile"]
    return [str(python), "-m", "pip", "install", *options]


class Progress:
    """One line with pip's stage and its duration; without a terminal, a line per stage."""

    def __init__(self, what: str, out: TextIO) -> None:
        self.what = what
        self.out = out
        self.stage = "starting"
        self.num_found = 0
        self._announced: set[str] = set()
        self.begun = time.monotonic()
        self._is_over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self) -> Progress:
        if self.out.isatty():
            self._ticker.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        if self._ticker.is_alive():
            self._ticker.join()
            print("\r\033[K", end="", file=self.out, flush=True)
        say(f"{self.what}: {time.monotonic() - self.begun:.1f} s")

    def take(self, line: str) -> None:
        """Take one line of pip's output."""
        words = line.split()
        if not words:
            return
        if words[0] == "Collecting":
            self.num_found += 1
            self._enter_stage("resolving", f"{self.num_found} packages, {words[1]}")
        elif words[0] == "Downloading" and len(words) > 1:
            size = " ".join(words[2:4]).strip("()") if len(words) > 3 else ""
            self._enter_stage("downloading", f"{Path(words[1]).name.split('-')[0]} {size}".rstrip())
        elif line.startswith("Installing collected packages"):
            self._enter_stage("unpacking", f"{line.count(',') + 1} packages")
        elif line.startswith("Building"):
            self._enter_stage("building", words[-1] if "wheel" not in words else "wheels")

    def _enter_stage(self, name: str, detail: str) -> None:
        self.stage = f"{name} {detail}"
        if name not in self._announced and not self.out.isatty():
            say(f"{self.what}: {name} …")
        self._announced.add(name)

    def _tick(self) -> None:
        while not self._is_over.wait(REFRESH_S):
            seconds = time.monotonic() - self.begun
            line = f"[dev] {self.what}: {self.stage} ({seconds:.0f} s)"
            print(f"\r\033[K{line[:110]}", end="", file=self.out, flush=True)


def run_pip(what: str, command: Sequence[str], *, cwd: Path, environ: Mapping[str, str], log: Path) -> None:
    """Run a pip command, appending its output to ``log``.

    Raises:
        SetupError: If pip fails; the message is one line with the reason and the log's place.
    """
    output: list[str] = []
    with Progress(what, sys.stderr) as progress, log.open("a", encoding="utf-8") as file:
        file.write(" ".join(command) + "\n")
        with subprocess.Popen(
            [*command, "--progress-bar", "off"],
            cwd=cwd,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                file.write(line)
                output.append(line)
                progress.take(line)
    if process.returncode != 0:
        raise SetupError(explain_pip_failure("".join(output), log))
