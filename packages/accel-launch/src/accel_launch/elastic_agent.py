"""The program between the launcher and the ranks of one machine: torch's elastic agent with our manners.

``python -m accel_launch.elastic_agent [--verbose] [--quiet] [--report=FILE] [FLAGS OF torch.distributed.run]
-- COMMAND...``

Every rank ends when the agent does, the exit code is the one of the rank that failed first, and a failure is
told in a few lines (with ``--verbose`` also by torch, at length; with ``--quiet`` not at all). SIGUSR1 and
SIGUSR2 are passed on to the ranks. This is the
only module of the package that imports torch; the launcher's own process never imports it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from accel_launch.messages import complain
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.output import Output
from accel_launch.processes.parent_death import tied_to_parent
from accel_launch.processes.sessions import pass_on_to_sessions
from accel_launch.processes.signals import USER_SIGNALS
from accel_launch.reports.run_report import RankEnding, RunReport, make_report
from accel_launch.reports.telling import tell

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing import LogsSpecs
    from torch.distributed.launcher.api import LaunchConfig

_POLL_INTERVAL_S = 0.1


class Failure(Protocol):
    """What is read here of torch's ``ProcessFailure``; the timestamp counts whole seconds."""

    exitcode: int
    timestamp: int
    local_rank: int


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks and return the exit code of the run: that of the rank that failed first, or 0."""
    # Until torch has its own handlers, Ctrl-C ends this process without a page of import frames.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    for signum in USER_SIGNALS:  # torch's agent would end of them
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, pass_on_to_sessions)
    from torch.distributed import DistError
    from torch.distributed import run as torch_run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import elastic_launch

    arguments = _parse(sys.argv[1:] if argv is None else argv)
    if not arguments.is_verbose:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    torch_flags = known_to_this_torch(arguments.torch_flags)
    if torch_flags is None:
        return 1
    # torch leaves these functions unannotated
    agent_arguments = torch_run.parse_args([*torch_flags, "--no-python", "COMMAND"])  # type: ignore[no-untyped-call]
    if agent_arguments.standalone:
        agent_arguments.rdzv_backend, agent_arguments.rdzv_endpoint = "c10d", "localhost:0"
    elif agent_arguments.rdzv_backend != "static" and agent_arguments.local_addr is None:
        # torch would tell the others this machine's name, which they may not be able to resolve.
        agent_arguments.local_addr = address_towards(agent_arguments.rdzv_endpoint)
    try:
        config, _, _ = torch_run.config_from_args(agent_arguments)  # makes the folder
    except OSError as error:
        complain(
            f"`--log_dir` is `{agent_arguments.log_dir}`, where no folder can be made: {error.strerror}."
        )
        return 1
    program, *rest = tied_to_parent(arguments.command, parent_pid=os.getpid())
    with TailedLogs(config.logs_specs) as logs:
        config = dataclasses.replace(config, logs_specs=cast("LogsSpecs", logs))
        try:
            elastic_launch(config=config, entrypoint=program)(*rest)
        except ChildFailedError as error:
            failure: ChildFailedError | None = error
        except SignalException as error:
            return 128 + int(error.sigval)
        except RendezvousError as error:
            return _tell_of_no_meeting(config, error.__cause__ or error)
        except (DistError, ValueError) as error:  # no such address, a backend that nobody knows, ...
            return _tell_of_no_meeting(config, error)
        else:
            failure = None
    report = report_on(
        {} if failure is None else failure.failures, num_ranks=logs.num_ranks, last_lines=logs.last_lines
    )
    if failure is not None and arguments.is_verbose:
        sys.stderr.write(f"{failure}\n")
    return tell(report, is_quiet=arguments.is_quiet, file=arguments.report)


def _tell_of_no_meeting(config: LaunchConfig, error: BaseException) -> int:
    told = str(error).partition("\n")[0]  # what follows is a stack
    complain(
        f"The machines do not meet by `--rdzv_backend {config.rdzv_backend}` at `{config.rdzv_endpoint}`: {told}"
    )
    return 1


class _Arguments(NamedTuple):
    torch_flags: list[str]
    command: list[str]
    is_verbose: bool
    is_quiet: bool
    report: Path | None


def _parse(argv: Sequence[str]) -> _Arguments:
    # Only the first `--` is ours; further ones belong to the command (torch's parser would swallow one).
    end = list(argv).index("--")
    flags = list(argv[:end])
    reports = [Path(flag.removeprefix("--report=")) for flag in flags if flag.startswith("--report=")]
    own = ("--verbose", "--quiet", "--report=")
    return _Arguments(
        [flag for flag in flags if not flag.startswith(own)],
        list(argv[end + 1 :]),
        "--verbose" in flags,
        "--quiet" in flags,
        reports[0] if reports else None,
    )


def known_to_this_torch(flags: list[str]) -> list[str] | None:
    """Return ``flags`` less the one that torch 2.8 lacks; where that changes the run, complain and return None.

    Delete this when we require a torch whose ``torch.distributed.run`` has ``--shutdown-timeout``.
    """
    from torch import __version__
    from torch.distributed.launcher.api import LaunchConfig

    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:
        return flags
    prefix, fixed_s = "--shutdown-timeout=", "30"
    for flag in flags:
        if flag.startswith(prefix) and (given_s := flag.removeprefix(prefix)) != fixed_s:
            complain(
                f"`--grace_period_s` is {given_s}, but the elastic agent of torch {__version__} always waits"
                f" {fixed_s} s. Leave the flag out, or use a newer torch."
            )
            return None
    return [flag for flag in flags if not flag.startswith(prefix)]


def address_towards(endpoint: str) -> str | None:
    """Return the address of this machine on the way to ``endpoint``; None if that cannot be told."""
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))  # of a datagram socket: nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


class TailedLogs:
    """A stand-in for torch's ``LogsSpecs`` that remembers the last lines of each rank.

    What goes to no file goes through a pipe (or a terminal where ours is one) that a thread passes on from.
    """

    def __init__(self, logs_specs: Any) -> None:
        self._logs_specs = logs_specs
        self._outputs: dict[int, Output] = {}
        self.num_ranks = 0  # of all machines, in the last attempt
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._pass_on, daemon=True)

    @property
    def root_log_dir(self) -> str:
        """The folder of torch's log files."""
        return str(self._logs_specs.root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Say where each rank of a new attempt writes to; torch calls it."""
        destinations = self._logs_specs.reify(envs)
        self.num_ranks = int(envs[0]["WORLD_SIZE"])
        with self._lock:
            self._close()
            for local_rank in envs:
                if destinations.stdouts[local_rank] or destinations.stderrs[local_rank]:
                    continue  # `--tee`: torch writes files, and shows them
                output = self._outputs[local_rank] = Output(is_by_line=len(envs) > 1)
                destinations.stdouts[local_rank] = f"/dev/fd/{output.stdout}"
                destinations.stderrs[local_rank] = f"/dev/fd/{output.stderr}"
        return destinations

    def last_lines(self, local_rank: int) -> tuple[str, ...]:
        """Return the last lines of a rank of the last attempt."""
        output = self._outputs.get(local_rank)
        return () if output is None else output.tail.lines()

    def __enter__(self) -> TailedLogs:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._close()

    def _pass_on(self) -> None:
        while not self._is_over.is_set():
            with self._lock:
                channels = {
                    channel.reader: channel
                    for output in self._outputs.values()
                    for channel in output.channels
                    if channel.is_open
                }
            try:
                ready, _, _ = select.select(list(channels), [], [], _POLL_INTERVAL_S)
            except OSError:  # a new attempt has just closed the ways of the old one
                continue
            with self._lock:
                for reader in ready:
                    channels[reader].pump()
                if not ready:
                    for output in self._outputs.values():
                        output.flush()

    def _close(self) -> None:
        for output in self._outputs.values():
            output.drain()
            output.close()
            output.started()


def report_on(
    failures: Mapping[int, Failure],
    *,
    num_ranks: int,
    last_lines: Callable[[int], tuple[str, ...]] = lambda local_rank: (),
) -> RunReport:
    """Return the report of the ranks in ``failures``; torch tells nothing of the others of ``num_ranks``.

    The agent of torch 2.8 also leaves out ranks that it ended because another had failed.
    """
    # On the clock of the tracebacks, and at the end of the second that torch has rounded down.
    offset_s = time.monotonic() - time.time() + 1
    return make_report(
        [
            RankEnding(
                rank,
                socket.gethostname(),
                ChildEnding(
                    failure.exitcode,
                    failure.timestamp + offset_s,
                    failure.exitcode == -signal.SIGTERM,
                    last_lines(failure.local_rank),
                ),
            )
            for rank, failure in sorted(failures.items())
        ],
        num_ranks=num_ranks,
    )


if __name__ == "__main__":
    sys.exit(main())
