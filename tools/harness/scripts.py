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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Literal

import psutil

from accel_state.environment import snapshot
from accel_state.errors import ConfigError
from tools.harness.fork_server import STACKS_SIGNAL, ForkedProcess, fork_server

Launcher = Literal["fork", "torchrun", "accel"]
_DEATH_S = 10.0
_READ_AT_IMPORT = (
    "PYTHON",
    "TORCH_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "ATEN_",
    "ONEDNN_",
    "MKL_",
    "OMP_",
    "KMP_",
)
_READ_LATER = ("PYTHONPATH",)
_GRACE_S = 20.0
"""How long the other ranks may continue after one has failed."""
_STACKS_S = 2.0
_TAIL = 4000


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
            env: Variables to add to this process's; ``OMP_NUM_THREADS`` is 1, and it writes without a buffer.
            preload: Modules that the process it is forked from has imported in addition to torch.

        Raises:
            ConfigError: If ``env`` has a variable that Python or torch reads while it is imported, which has
                happened already: such a script needs a new process (`run_command`).
        """
        _refuse_variables_read_at_import(env or {})
        self._stdout: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the script
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        with Path(os.devnull).open("rb") as nothing:
            self.process: ForkedProcess = fork_server(preload).start(
                tuple(map(str, argv)),
                environ={**snapshot(), "OMP_NUM_THREADS": "1", **(env or {})},
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
        code = self.process.poll()
        if code is None and STACKS_SIGNAL is not None:
            before, deadline = self.stderr, time.monotonic() + _STACKS_S
            self.process.send_signal(STACKS_SIGNAL)
            while self.stderr == before and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(0.05)  # the rest of its output
        state = "runs" if code is None else f"ended with exit code {code}"
        return f"{state}, {open_files(self.process.pid)}. It wrote:\n{self.stdout[-_TAIL:]}\n{self.stderr[-_TAIL:]}"

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
        common = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(holder.getsockname()[1]),
            "WORLD_SIZE": str(num_processes),
            "LOCAL_WORLD_SIZE": str(num_processes),
            **(env or {}),
        }
        ranks = []
        for rank in map(str, range(num_processes)):
            script = Script(argv, env={**common, "RANK": rank, "LOCAL_RANK": rank}, cwd=cwd, preload=preload)
            stack.callback(script.close)
            ranks.append(script)
        stack.push(lambda _, error, __: None if error is None else error.add_note(_described(ranks)))
        yield ranks


def _described(ranks: Sequence[Script]) -> str:
    return "\n".join(f"--- rank {rank} {script.describe()}" for rank, script in enumerate(ranks))


def run_script(
    script: str | Path,
    *args: str,
    num_processes: int = 1,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout_s: float = 120,
    launcher: Launcher = "fork",
    preload: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    """Run a script and return its exit code and output.

    Args:
        num_processes: How many ranks run it, on the CPU.
        env: Variables to add to this process's; ``OMP_NUM_THREADS`` is 1, unless given for a command.
        cwd: The folder it runs in; this process's if omitted.
        timeout_s: After this time all started processes are killed and `subprocess.TimeoutExpired` raised,
            with the output so far.
        launcher: ``fork`` starts the ranks in tens of milliseconds and without a launcher between: the exit code is
            that of the first rank that failed, the output that of all ranks in their order. ``torchrun`` is forked
            itself, and starts ranks that import torch again. ``accel`` is the command.
        preload: Modules that forked ranks have imported in addition to torch: heavy ones that several scripts of a file
            import. They may start no threads.

    Raises:
        ConfigError: If ``preload`` is given for ranks that are not forked, or ``env`` has what `Script` refuses.
    """
    if preload and launcher != "fork":
        raise ConfigError(
            f"`preload` needs `launcher='fork'`, got `{launcher}`, whose ranks import all modules."
        )
    if launcher == "fork":
        argv = [script, *args]
        return _run_forked(argv, num_processes, env=env, cwd=cwd, timeout_s=timeout_s, preload=preload)
    if launcher == "torchrun":
        return _run_forked(
            [*torchrun(num_processes), script, *args], 1, env=env, cwd=cwd, timeout_s=timeout_s
        )
    accel = str(Path(sys.executable).parent / "accel")
    command = [accel, "launch", "--cpu", "--num_processes", str(num_processes), str(script), *args]
    return run_command(command, env={"OMP_NUM_THREADS": "1", **(env or {})}, cwd=cwd, timeout_s=timeout_s)


def torchrun(num_processes: int) -> list[str]:
    """Return the arguments of Python that are torchrun for ranks of this machine; a script follows."""
    code = "from torch.distributed.run import main; main()"
    return ["-c", code, "--standalone", "--nproc_per_node", str(num_processes)]


def _run_forked(
    argv: Sequence[str | Path],
    num_processes: int,
    *,
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    timeout_s: float,
    preload: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[str]:
    with ExitStack() as stack:
        if num_processes == 1:
            ranks = [Script(argv, env=env, cwd=cwd, preload=preload)]
            stack.callback(ranks[0].close)
        else:
            ranks = stack.enter_context(start_ranks(argv, num_processes, env=env, cwd=cwd, preload=preload))
        code = wait_for_ranks(ranks, timeout_s=timeout_s)
        return subprocess.CompletedProcess(
            argv, code, "".join(rank.stdout for rank in ranks), "".join(rank.stderr for rank in ranks)
        )


def wait_for_ranks(ranks: Sequence[Script], *, timeout_s: float = 120) -> int:
    """Wait for the end of all ranks and return the exit code of the first that failed, or 0.

    Raises:
        subprocess.TimeoutExpired: After ``timeout_s``, with the output so far. Ranks that still run 20 s after
            another has failed are killed.
    """
    failed: list[int] = []
    deadline = time.monotonic() + timeout_s
    running = list(ranks)
    while running:
        for rank in list(running):
            code = rank.process.poll()
            if code is None:
                continue
            running.remove(rank)
            if code and not failed:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            if code:
                failed.append(code)
        if running and time.monotonic() > deadline:
            if failed:
                break
            raise subprocess.TimeoutExpired(
                "ranks",
                timeout_s,
                output="".join(rank.stdout for rank in ranks).encode(),
                stderr="".join(rank.stderr for rank in ranks).encode(),
            )
        time.sleep(0.01)
    return failed[0] if failed else 0


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
    except subprocess.TimeoutExpired as expired:
        kill_tree(process.pid)
        stdout, stderr = process.communicate()
        expired.stdout, expired.stderr = stdout.encode(), stderr.encode()
        raise
    except BaseException:
        kill_tree(process.pid)
        process.communicate()
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
        try:
            member.kill()
        except psutil.NoSuchProcess:
            continue
    deadline = time.monotonic() + _DEATH_S
    while any(map(is_alive, family)) and time.monotonic() < deadline:
        time.sleep(0.01)


def open_files(pid: int) -> str:
    """Return which files a process has open, in words."""
    try:
        paths = [file.path for file in psutil.Process(pid).open_files()]
    except psutil.Error:
        paths = []
    return f"has open: {', '.join(paths) or 'no files'}"


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a zombie does not."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _refuse_variables_read_at_import(env: Mapping[str, str]) -> None:
    for name in env:
        if name.startswith(_READ_AT_IMPORT) and name not in _READ_LATER:
            raise ConfigError(
                f"`{name}` is read while Python or torch is imported, which a forked script does not do. "
                "Start the script with `run_command` or by a launcher."
            )


def _without_gloo_lines(stdout: str) -> str:
    # gloo of torch 2.9 and 2.10 logs a line with the connected ranks for each group. Delete when we require torch 2.13.
    return re.sub(r"^\[Gloo\] Rank \d+ is connected to .*\n", "", stdout, flags=re.MULTILINE)


def _text(stream: IO[bytes]) -> str:
    return os.pread(stream.fileno(), os.fstat(stream.fileno()).st_size, 0).decode(errors="replace")
