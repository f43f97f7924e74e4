"""torch's elastic agent for the ranks of this machine, as ``python -P -m accel_launch.elastic_agent FLAGS COMMAND``.

It takes torchrun's flags and knows the backend ``accel-static``. The last line that it writes to stderr after a
failure is a message for the launcher: which ranks failed (`accel_launch.remote_protocol`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":  # a Ctrl-C can get lost while torch is imported
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from torch.distributed import DistError, run
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import LogsSpecs, SignalException, api
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.launcher.api import LaunchConfig

from accel_launch.launchers.elastic import address_towards
from accel_launch.messages import complain
from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import Attempt, adopt_orphans
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.signals import ENDING_SIGNALS, blocked
from accel_launch.processes.standby import Standby, can_be_forked
from accel_launch.remote_protocol import Endings
from accel_launch.static_rendezvous import BACKEND, StaticRendezvous
from accel_state.environment import patch_environment
from accel_state.imports_report import REPORT_VARIABLE

_POLL_INTERVAL_S = 0.01
MEETING_ERRORS = (RendezvousError, DistError, ValueError)


class _Fork:
    """A rank that was forked from a standby: what torch uses of a `Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._return_code: int | None = None

    def poll(self) -> int | None:
        if self._return_code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._return_code = os.waitstatus_to_exitcode(status) if pid else None
        return self._return_code

    def wait(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            time.sleep(_POLL_INTERVAL_S)


class _Rank(SubprocessHandler):
    """A rank that its agent starts, or forks from the standby."""

    def __init__(self, agent: Agent, **given: Any) -> None:
        self._agent = agent
        super().__init__(**given)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> Any:
        files = enumerate((self._stdout, self._stderr), start=1)
        streams = [0, *(file.fileno() if file else number for number, file in files)]
        pid = self._agent.fork(ProcessPlan(args, Path.cwd(), env | self._agent.variables), streams)
        return super()._popen(args, env | self._agent.variables) if pid is None else _Fork(pid)


class Agent(LocalElasticAgent):
    """torch's agent, whose machines count the same restarts if they meet in a `StaticRendezvous`.

    Ranks that start again are forked from a standby, where that is possible.
    """

    def __init__(self, spec: WorkerSpec, logs_specs: LogsSpecs, *args: Any, **options: Any) -> None:
        super().__init__(spec, logs_specs, *args, **options)
        self._report = Path(logs_specs.root_log_dir, "imports.json")
        self._plans: list[ProcessPlan] = []
        self._standby: Standby | None = None
        self.variables = {REPORT_VARIABLE: str(self._report)} if spec.max_restarts else {}
        """The variables of its ranks beside those that torch sets."""

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        spec = worker_group.spec
        if isinstance(spec.rdzv_handler, StaticRendezvous):
            self._remaining_restarts = spec.max_restarts - spec.rdzv_handler.num_restarts
        if self._plans and sys.platform == "linux":  # commands start again: nothing is left of them before
            Attempt((), grace_period_s=0, gives_notice=False, standby=self._standby).kill()
        self._plans.clear()
        while self._standby is not None and self._standby.is_awaited():
            time.sleep(_POLL_INTERVAL_S)
        # Functions are forked with signals blocked, and unblock them: torch turns a signal into an exception, and
        # Python drops exceptions around a fork, so that a Ctrl-C would be lost; one between a fork and its
        # registration would leave a process that nothing ends.
        of_torch = api.get_subprocess_handler  # type: ignore[attr-defined]
        try:
            api.get_subprocess_handler = partial(_Rank, self)  # type: ignore[attr-defined]
            with blocked(() if isinstance(spec.entrypoint, str) else ENDING_SIGNALS):
                started: dict[int, Any] = super()._start_workers(worker_group)
        finally:  # else this agent, with its store, would live on, and end in some fork
            api.get_subprocess_handler = of_torch  # type: ignore[attr-defined]
        if self._standby is None and self._plans and self.variables:
            adopt_orphans()
            if can_be_forked(self._plans):
                self._standby = Standby(self._plans, self._report)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._standby is not None:
            self._standby.look({})
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def fork(self, plan: ProcessPlan, streams: Sequence[int]) -> int | None:
        """Fork a rank from the standby; return None if it has to be started."""
        self._plans.append(plan)
        if self._standby is None:
            return None
        return self._standby.fork(plan, plan.environ, streams, starts_session=True)

    def close(self) -> None:
        """End the standby."""
        if self._standby is not None:
            self._standby.close()


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
        # In a store that ranks share with torch's rendezvous, keys of the attempt before are left, and the next one
        # hangs on them now and then (seen with torch 2.13).
        with patch_environment(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"):
            result: RunResult = agent.run()
    except SignalException:  # other machines may go on without this one
        is_over = False
        raise
    finally:
        agent.close()
        if is_over:
            meeting.shutdown()
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """Run the ranks of this machine; return 0 if they succeeded, 1 if not."""
    given = run.parse_args(argv)  # type: ignore[no-untyped-call]
    given.local_addr = given.local_addr or address_towards(given.rdzv_endpoint)
    try:
        with TemporaryDirectory(prefix="accel-errors-") as folder:
            if given.tee == "0":  # else torch makes one, which is kept
                given.log_dir = given.log_dir or folder
            result = run_ranks(*run.config_from_args(given))
    except SignalException as error:
        return 128 + int(error.sigval)
    except MEETING_ERRORS as error:
        complain(why_no_meeting(error, given.rdzv_backend, given.rdzv_endpoint))
        return 1
    if not result.is_failed():
        return 0
    offset_s = time.monotonic() - time.time()
    ranks = tuple(
        ChildEnding(failure.exitcode, failure.timestamp + offset_s, rank=rank)
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
