"""Runs real scripts in real processes, and leaves none behind."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import psutil

from accel_state.environment import snapshot
from accel_state.errors import ConfigError
from tools.harness.fork_server import STACKS_SIGNAL, ForkedProcess, fork_server

_READ_AT_IMPORT = re.compile(r"PYTHON(?!PATH$)|TORCH(DYNAMO|INDUCTOR)?_|(ATEN|ONEDNN|MKL|OMP|KMP)_")
"""Variables that Python or torch reads while it is imported, which forked scripts do not do."""
_GRACE_S = 20.0
"""How long the other ranks may continue after one has failed."""
_DEATH_S = 10.0
_STACKS_S = 5.0
_TAIL = 8000


class Script:
    """A running script, forked from a process that has torch imported, and its output so far."""

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        preload: tuple[str, ...] = (),
    ) -> None:
        """Start ``python *argv``: a file or ``-c`` and code, then arguments.

        Args:
            env: Variables to add to this process's.
            preload: Modules that the process it is forked from has imported in addition to torch.

        Raises:
            ConfigError: If ``env`` has a variable that is read at import: such a script needs a new process.
        """
        for name in filter(_READ_AT_IMPORT.match, env or {}):
            raise ConfigError(
                f"`{name}` is read while Python or torch is imported, which a forked script does not do. "
                "Start the script with `run_command` or by a launcher."
            )
        self._stdout: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the script
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with Path(os.devnull).open("rb") as nothing:
            self.process: ForkedProcess | subprocess.Popen[bytes] = fork_server(preload).start(
                tuple(map(str, argv)),
                environ={**snapshot(), **(env or {})},
                cwd=cwd,
                streams=(nothing, self._stdout, self._stderr),
            )

    @property
    def stdout(self) -> str:
        """Its standard output so far."""
        return _without_gloo_lines(_text(self._stdout))

    @property
    def stderr(self) -> str:
        """Its standard error so far."""
        return _text(self._stderr)

    def wait_for_output(self, text: str, *, timeout_s: float = 60) -> None:
        """Wait until it has printed ``text``.

        Raises:
            TimeoutError: After ``timeout_s``, or at once if it has ended without.
        """
        deadline = time.monotonic() + timeout_s
        while text not in self.stdout:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise TimeoutError(f"The script did not print {text!r}. Its errors:\n{self.stderr}")
            time.sleep(0.01)

    def describe(self) -> str:
        """Return its exit code, or that it runs; and its last output, with the stacks of its threads if it runs."""
        code, files = self.process.poll(), "no files"
        if code is None:
            with suppress(psutil.Error):
                opened = psutil.Process(self.process.pid).open_files()
                files = ", ".join(file.path for file in opened) or files
            before = earlier = len(self.stderr)
            self.ask_for_stacks()
            deadline = time.monotonic() + _STACKS_S
            while time.monotonic() < deadline:
                time.sleep(0.1)
                now = len(self.stderr)
                if now == earlier > before:  # it has written, and is done
                    break
                earlier = now
        state = f"runs, has open: {files}" if code is None else f"ended with exit code {code}"
        return f"{state}. It wrote:\n{self.stdout[-_TAIL:]}\n{self.stderr[-_TAIL:]}"

    def ask_for_stacks(self) -> None:
        """Make it write what its threads do to standard error."""
        self.process.send_signal(STACKS_SIGNAL)

    def close(self) -> None:
        """Kill it, with all it has started, if it still runs."""
        if self.process.poll() is None:
            kill_tree(self.process.pid)
        self.process.wait()
        self._stdout.close()
        self._stderr.close()


@contextmanager
def start_ranks(
    argv: Sequence[str | Path],
    num_processes: int,
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    preload: tuple[str, ...] = (),
) -> Iterator[list[Script]]:
    """Start a script on several ranks of this machine; end the remaining ones after the block.

    They meet over TCP at rank 0. They are not supervised: each ends by itself. An error in the block gets a
    note of what each rank does.
    """
    with ExitStack() as stack:
        # Bound, so that no other process is given the port, but not listened to, so that rank 0 can take it.
        holder = stack.enter_context(socket.socket())
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        size = str(num_processes)
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(holder.getsockname()[1]),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": size,
        }
        ranks = []
        for rank in map(str, range(num_processes)):
            of_rank = {} if num_processes == 1 else {**common, "RANK": rank, "LOCAL_RANK": rank}
            ranks.append(Script(argv, env={**of_rank, **(env or {})}, cwd=cwd, preload=preload))
            stack.callback(ranks[-1].close)
        try:
            yield ranks
        except BaseException as error:
            error.add_note(
                "\n".join(f"--- rank {number} {rank.describe()}" for number, rank in enumerate(ranks))
            )
            raise


def run_script(
    script: str | Path,
    *args: str,
    num_processes: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
    preload: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a script, or ``-c`` and code, on ranks without a launcher; return its exit code and output.

    The exit code is that of the first rank that failed, the output that of all ranks in their order.

    Args:
        num_processes: How many ranks run it, on the CPU.
        env: Variables to add to this process's.
        cwd: The folder it runs in; this process's if omitted.
        timeout_s: After this time all started processes are killed and `subprocess.TimeoutExpired` raised,
            with the output so far.
        preload: Modules that the processes have imported in addition to torch: heavy ones that several scripts of a
            file import. They may start no threads.
    """
    argv = [script, *args]
    with start_ranks(argv, num_processes, env=env, cwd=cwd, preload=preload) as ranks:
        code = wait_for_ranks(ranks, timeout_s=timeout_s)
        return subprocess.CompletedProcess(
            argv, code, "".join(rank.stdout for rank in ranks), "".join(rank.stderr for rank in ranks)
        )


def accel_launch(
    script: str | Path, *args: str, num_processes: int, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script by the command ``accel launch``, on the CPU."""
    launch = [str(Path(sys.executable).with_name("accel")), "launch", "--cpu"]
    command = [*launch, "--num_processes", str(num_processes), str(script), *args]
    return run_command(command, env=env, timeout_s=240)


def torchrun(num_processes: int) -> tuple[str, ...]:
    """Return the words for `run_script` that are torchrun for ranks of this machine; a script follows."""
    code = "from torch.distributed.run import main; main()"
    return ("-c", code, "--standalone", f"--nproc_per_node={num_processes}")


def wait_for_ranks(ranks: Sequence[Script], *, timeout_s: float = 120) -> int:
    """Wait for the end of all ranks and return the exit code of the first that failed, or 0.

    Raises:
        subprocess.TimeoutExpired: After ``timeout_s``, with the output so far. Ranks that still run 20 s after
            another has failed are left to be killed.
    """
    failure, deadline = 0, time.monotonic() + timeout_s
    while True:
        codes = [rank.process.poll() for rank in ranks]
        if not failure and any(codes):
            failure = next(filter(None, codes))
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        if None not in codes or (failure and time.monotonic() > deadline):
            return failure
        if time.monotonic() > deadline:
            stdout, stderr = ("".join(rank.stdout for rank in ranks), "".join(rank.stderr for rank in ranks))
            raise subprocess.TimeoutExpired("ranks", timeout_s, stdout.encode(), stderr.encode())
        time.sleep(0.01)


def run_command(
    command: list[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a separate session; all its processes are dead when this returns."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**snapshot(), **(env or {})},
        cwd=cwd,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    except BaseException as error:
        kill_tree(process.pid)
        stdout, stderr = process.communicate()
        if isinstance(error, subprocess.TimeoutExpired):
            error.stdout, error.stderr = stdout.encode(), stderr.encode()
        raise
    return subprocess.CompletedProcess(command, process.returncode, _without_gloo_lines(stdout), stderr)


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, in any session, and wait until they are dead."""
    try:
        parent = psutil.Process(pid)
        family = [*parent.children(recursive=True), parent]
    except psutil.NoSuchProcess:
        return
    for member in family:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    deadline = time.monotonic() + _DEATH_S
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.01)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _without_gloo_lines(stdout: str) -> str:
    # gloo of torch 2.9 and 2.10 logs a line with the connected ranks for each group. Delete when we require torch 2.13.
    return re.sub(r"^\[Gloo\] Rank \d+ is connected to .*\n", "", stdout, flags=re.MULTILINE)


def _text(stream: IO[bytes]) -> str:
    return os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0).decode(errors="replace")
