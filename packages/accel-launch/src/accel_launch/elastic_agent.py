"""torch's elastic agent for the ranks of this machine, as ``python -P -m accel_launch.elastic_agent FLAGS COMMAND``.

It takes torchrun's flags and knows the backend ``accel-static``. The last line that it writes to stderr after a
failure is a message for the launcher: which ranks failed (`accel_launch.remote_protocol`).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

if __name__ == "__main__":  # a Ctrl-C can get lost while torch is imported
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from torch.distributed import DistError, run
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher.api import LaunchConfig

from accel_launch.launchers.elastic import address_towards
from accel_launch.messages import complain
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.signals import ENDING_SIGNALS, blocked
from accel_launch.remote_protocol import Endings
from accel_launch.report import RankEnding
from accel_launch.static_rendezvous import BACKEND, StaticRendezvous

MEETING_ERRORS = (RendezvousError, DistError, ValueError)


class Agent(LocalElasticAgent):
    """torch's agent, whose machines count the same restarts if they meet in a `StaticRendezvous`.

    Forks start with signals blocked and unblock them: torch turns a signal into an exception, and Python drops
    exceptions around a fork, so that a Ctrl-C would be lost; one between a fork and its registration would leave a
    process that nothing ends.
    """

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        meeting = worker_group.spec.rdzv_handler
        if isinstance(meeting, StaticRendezvous):
            self._remaining_restarts = worker_group.spec.max_restarts - meeting.num_restarts
        is_forked = not isinstance(worker_group.spec.entrypoint, str)
        with blocked(ENDING_SIGNALS if is_forked else ()):
            started: dict[int, Any] = super()._start_workers(worker_group)
        return started


def run_ranks(config: LaunchConfig, entrypoint: Callable[..., Any] | str, args: Sequence[Any]) -> RunResult:
    """Start the ranks of this machine as often as necessary, and return how they ended.

    Raises:
        RendezvousError, DistError, ValueError: If the machines do not meet.
        SignalException: If a signal ended the ranks; other machines may go on without this one.
    """
    meeting = get_rendezvous_handler(
        RendezvousParameters(
            config.rdzv_backend,
            config.rdzv_endpoint,
            config.run_id,
            config.min_nodes,
            config.max_nodes,
            config.local_addr,
            **config.rdzv_configs,
        )
    )
    spec = WorkerSpec(
        config.role,
        config.nproc_per_node,
        meeting,
        entrypoint=entrypoint,
        args=tuple(args),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        local_addr=config.local_addr,
    )
    assert config.logs_specs is not None
    template = config.log_line_prefix_template
    agent = Agent(spec, config.logs_specs, config.start_method, log_line_prefix_template=template)
    is_over = True
    try:
        result: RunResult = agent.run()
    except SignalException:  # other machines may go on without this one
        is_over = False
        raise
    finally:
        if is_over:
            meeting.shutdown()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks of this machine; return 0 if they succeeded, 1 if not."""
    given = run.parse_args(argv)  # type: ignore[no-untyped-call]
    given.local_addr = given.local_addr or address_towards(given.rdzv_endpoint)
    config, command, arguments = run.config_from_args(given)
    try:
        result = run_ranks(config, command, arguments)
    except SignalException as error:
        return 128 + int(error.sigval)
    except MEETING_ERRORS as error:
        complain(why_no_meeting(error, given.rdzv_backend, given.rdzv_endpoint))
        return 1
    if not result.is_failed():
        return 0
    offset_s = time.monotonic() - time.time()
    ranks = tuple(
        RankEnding(rank, socket.gethostname(), ChildEnding(failure.exitcode, failure.timestamp + offset_s))
        for rank, failure in result.failures.items()
    )
    os.write(2, Endings(ranks).encode())
    return 1


def why_no_meeting(error: Exception, backend: str, endpoint: str) -> str:
    """Return in words why the machines do not meet."""
    if isinstance(error, RendezvousClosedError):
        return "The run has ended on another machine, so the ranks of this one do not start."
    cause = error.__cause__ if isinstance(error, RendezvousError) else None
    told = str(cause or error).partition("\n")[0]  # what follows is a stack
    shown = "static" if backend == BACKEND else backend
    return f"The machines do not meet by `--rdzv_backend {shown}` at `{endpoint}`: {told}"


if __name__ == "__main__":
    sys.exit(main())
