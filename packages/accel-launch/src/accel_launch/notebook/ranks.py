"""The ranks of a notebook: forks that call a function, under torch's elastic agent."""

from __future__ import annotations

import gc
import json
import logging
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TextIO

from accel_launch.launchers.elastic import address_towards, meeting_settings
from accel_launch.launchers.local import free_port
from accel_launch.processes.child import ChildEnding, signal_name
from accel_launch.processes.parent_death import end_with_parent
from accel_launch.report import make_report
from accel_launch.request import variables_of_outer_run
from accel_state.environment import patch_environment, read, snapshot, variable
from accel_state.errors import LaunchError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

FORKED = {"FORK_LAUNCHED": "1"}
"""What `PartialState.fork_launched` is read from."""
_ROLE = "default"
# A look for GPUs that leaves the process fit for forks.
_OF_AGENT = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
# Signals that torch's agent handles while ranks run; it leaves its handlers behind.
_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT") if hasattr(signal, name)
)


def run_forks(
    function: Callable[..., Any],
    args: Sequence[Any],
    variables: Mapping[str, str],
    num_here: int,
    *,
    endpoint: str = "",
    backend: str = "static",
    conf: Mapping[str, Any] | None = None,
    run_id: str = "none",
    machine_rank: int = 0,
    num_machines: int = 1,
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    prefix_template: str | None = None,
) -> None:
    """Call the function in forks of this process, which have ``variables``, until all have ended.

    torch's agents, one on each of ``num_machines``, start ``num_here`` forks each. They meet at ``endpoint``, a free
    port of this machine if empty.

    Raises:
        LaunchError: If one fails, or machines do not meet.
        KeyboardInterrupt: If the run is interrupted.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.launcher.api import LaunchConfig

    from accel_launch.elastic_agent import MEETING_ERRORS, run_ranks, why_no_meeting

    endpoint = endpoint or f"127.0.0.1:{free_port()}"
    backend_of_torch, of_backend = meeting_settings(backend, machine_rank, "")
    unset = dict.fromkeys(variables_of_outer_run(snapshot()))
    with (
        TemporaryDirectory(prefix="accel-notebook-") as name,
        patch_environment(**{**unset, **_OF_AGENT, **variables, **FORKED}),
        _quiet_torch(),
        _signals_and_children_restored(),
    ):
        config = LaunchConfig(
            num_machines,
            num_machines,
            num_here,
            logs_specs=DefaultLogsSpecs(name),
            run_id=run_id,
            role=_ROLE,
            rdzv_endpoint=endpoint,
            rdzv_backend=backend_of_torch,
            rdzv_configs=dict(pair.split("=") for pair in of_backend.split(",") if pair) | dict(conf or {}),
            max_restarts=max_restarts,
            monitor_interval=monitor_interval,
            start_method="fork",
            local_addr=address_towards(endpoint),
        )
        call = (function, args, Path(name), os.getpid(), prefix_template or "")
        try:
            result = run_ranks(config, _call, call)
        except MEETING_ERRORS as error:
            raise LaunchError(why_no_meeting(error, backend, endpoint)) from None
        except SignalException as error:
            ended_by = int(error.sigval)
        else:
            if result.is_failed():
                raise _ranks_failed_error(result.failures, Path(name))
            return
    signal.raise_signal(ended_by)  # it waited until the ranks had ended
    if ended_by == signal.SIGINT:
        raise KeyboardInterrupt
    raise LaunchError(f"The ranks were ended by {signal_name(ended_by)}.")


class _WholeLines:
    """A stream that writes each line at once, after a prefix: a `print` writes the end of its line apart."""

    def __init__(self, stream: TextIO, prefix: str) -> None:
        self._stream = stream
        self._prefix = prefix
        self._rest = ""
        self._is_at_start = True

    def write(self, text: str) -> int:
        *lines, self._rest = re.split(r"(?<=[\n\r])", self._rest + text)
        if lines:
            self._write(lines)
        return len(text)

    def flush(self) -> None:
        rest, self._rest = self._rest, ""
        if rest:
            self._write([rest])
        self._stream.flush()

    def _write(self, pieces: Sequence[str]) -> None:
        self._stream.write(self._prefix.join(["", *pieces] if self._is_at_start else pieces))
        self._stream.flush()
        self._is_at_start = pieces[-1].endswith(("\n", "\r"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _call(
    function: Callable[..., Any], args: Sequence[Any], folder: Path, kernel: int, template: str
) -> None:
    """Call the function in a fork, which ends, at the latest, with the kernel.

    The fork lacks the threads that the notebook had. The OpenMP of torch's builds for Linux would wait for them
    forever, so each process computes in one thread. So would finalizers such as a process group's, so what the notebook
    left as garbage is not collected here.
    """
    end_with_parent(kernel)
    signal.set_wakeup_fd(-1)
    for signum in _SIGNALS[1:]:
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    names = {"local_rank": variable("LOCAL_RANK"), "rank": variable("RANK")}
    prefix = Template(template).safe_substitute(names, role_name=_ROLE)
    sys.stdout, sys.stderr = _WholeLines(sys.stdout, prefix), _WholeLines(sys.stderr, prefix)
    gc.freeze()
    sys.modules["torch"].set_num_threads(1)
    try:
        function(*args)
    except Exception:
        failure = {"failed_at": time.monotonic(), "lines": traceback.format_exc().splitlines()}
        (folder / f"rank{variable('RANK')}.json").write_text(json.dumps(failure), encoding="utf-8")
        raise


@contextmanager
def _quiet_torch() -> Iterator[None]:
    """Silence torch's own report of a failure, which ours replaces, unless in debug mode."""
    loggers = [
        logger
        for name, logger in logging.root.manager.loggerDict.items()
        if name.startswith(
            ("torch.distributed.elastic", "torch.distributed.launcher", "torch.multiprocessing")
        )
        and isinstance(logger, logging.Logger)
    ]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = not read("debug_mode")
    try:
        yield
    finally:
        for logger, was_disabled in zip(loggers, before, strict=True):
            logger.disabled = was_disabled


@contextmanager
def _signals_and_children_restored() -> Iterator[None]:
    """Restore the handlers of signals, and kill forks that are left, as after a second Ctrl-C."""
    children = set(multiprocessing.active_children())
    is_main = threading.current_thread() is threading.main_thread()
    handlers = {signum: signal.getsignal(signum) for signum in _SIGNALS if is_main}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        for child in set(multiprocessing.active_children()) - children:
            child.kill()
            child.join()


def _ranks_failed_error(failures: Mapping[int, ProcessFailure], folder: Path) -> LaunchError:
    """Return an error of ours that is torch's too: code written for torch's launchers catches those."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.multiprocessing.spawn import ProcessRaisedException

    class RanksFailedError(LaunchError, ChildFailedError, ProcessRaisedException):
        """A rank failed; the message says which failed first, and with what."""

    now = time.monotonic()
    endings = {rank: ChildEnding(failure.exitcode, now, rank=rank) for rank, failure in failures.items()}
    for file in folder.glob("rank*.json"):
        told = json.loads(file.read_text(encoding="utf-8"))
        rank = int(file.stem.removeprefix("rank"))
        endings[rank] = ChildEnding(1, told["failed_at"], last_lines=tuple(told["lines"]), rank=rank)
    report = make_report(list(endings.values()))
    first = report.first
    if first is None:
        raise KeyboardInterrupt  # a rank was interrupted
    what = f"it {first.reason}" if first.exception is None else first.exception.describe()
    error = RanksFailedError("notebook_function", dict(failures))
    error.args = ("\n".join([f"Rank {first.rank} failed first: {what}.", *endings[first.rank].last_lines]),)
    error.msg, error.error_index, error.error_pid = error.args[0], first.rank, -1
    return error
