"""The ranks of a notebook: forks that call a function, under the supervisor of all launches."""

from __future__ import annotations

import gc
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from string import Template
from typing import Any

from accel_launch.launchers.outer_task import variables_of_outer_run
from accel_launch.launchers.ports import held_port
from accel_launch.launchers.ranks import rank_variables
from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.ending import signal_name
from accel_launch.processes.supervision import run_processes
from accel_launch.processes.supervisor import RunEnding
from accel_launch.reports.run_report import RankEnding, RunReport, make_report
from accel_state.environment import snapshot
from accel_state.errors import LaunchError

FORKED = {"FORK_LAUNCHED": "1"}
"""What `PartialState.fork_launched` is read from."""
_ROLE = "default"


def run_forks(
    function: Callable[..., Any],
    args: Sequence[Any],
    variables: Mapping[str, str],
    *,
    num_here: int,
    master_addr: str = "127.0.0.1",
    port: int | None = None,
    run_id: str = "none",
    rendezvous: ProcessPlan | None = None,
    max_restarts: int = 0,
    prefix_template: str | None = None,
) -> None:
    """Call the function in ``num_here`` forks of this process, which have ``variables``, until all have ended.

    They meet at ``port``, a free one if None, or where ``rendezvous`` says, which also tells them their ranks.

    Raises:
        LaunchError: If one fails, or machines do not meet.
        KeyboardInterrupt: If somebody interrupts the run.
    """
    environ = snapshot()
    template = Template(prefix_template or "")
    prefixes = [
        template.safe_substitute(role_name=_ROLE, local_rank=place, rank="${rank}")
        for place in range(num_here)
    ]
    with held_port(port, asked_with="use_port") as found:
        own = {**variables, **FORKED, "MASTER_ADDR": master_addr, "MASTER_PORT": str(found)}
        plans = []
        for place in range(num_here):
            of_rank = own | rank_variables(
                rank=place,
                world_size=num_here,
                local_rank=place,
                local_world_size=num_here,
                machine_rank=0,
                num_machines=1,
                role=_ROLE,
                max_restarts=max_restarts,
                run_id=run_id,
            )
            unset = tuple(name for name in variables_of_outer_run(environ) if name not in of_rank)
            plans.append(
                ProcessPlan((), Path(), of_rank, unset, rank=place, function=partial(_call, function, args))
            )
        ending = run_processes(
            plans,
            host_environ=environ,
            prefixes=prefixes,
            restarts=Restarts(max_restarts, rendezvous=rendezvous),
        )
    _raise_if_failed(ending)


def _call(function: Callable[..., Any], args: Sequence[Any]) -> None:
    """Call the function in a fork, which lacks the threads that the notebook had.

    The OpenMP of torch's builds for Linux would wait for them forever, so each process computes in one thread. So
    would finalizers such as a process group's, so what the notebook left as garbage is not collected here.
    """
    gc.freeze()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
    function(*args)


def _raise_if_failed(ending: RunEnding) -> None:
    if ending.interrupted_by is not None:
        signal.raise_signal(ending.interrupted_by)  # it waited until the ranks had ended
        if ending.interrupted_by == signal.SIGINT:
            raise KeyboardInterrupt
        raise LaunchError(f"The ranks were ended by {signal_name(ending.interrupted_by)}.")
    if not ending.children:
        raise LaunchError("The machines have not met; the line above says why.")
    children = {rank or 0: child for rank, child in zip(ending.ranks, ending.children, strict=True)}
    report = make_report(
        [RankEnding(rank, "", child) for rank, child in children.items()],
        num_memory_kills=ending.num_memory_kills,
    )
    if report.outcome == "interrupted":
        raise KeyboardInterrupt
    if report.outcome == "failed":
        raise _ranks_failed_error(report, children)


def _ranks_failed_error(report: RunReport, children: Mapping[int, ChildEnding]) -> LaunchError:
    """Return an error of ours that is torch's too: code written for torch's launchers catches those."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
    from torch.multiprocessing.spawn import ProcessRaisedException

    class RanksFailedError(LaunchError, ChildFailedError, ProcessRaisedException):
        """A rank failed; the message says which failed first, and with what."""

    first = report.first
    assert first is not None
    ranks = [first, *(rank for rank in report.ranks if rank is not first and rank.return_code != 0)]
    # The numbers of processes that have ended may be others' by now.
    failures = {rank.rank: ProcessFailure(rank.rank, -1, rank.return_code, "") for rank in ranks}
    error = RanksFailedError("notebook_function", failures)
    what = f"it {first.reason}" if first.exception is None else first.exception.describe()
    lines = _traceback(first.rank, children[first.rank].last_lines)
    error.args = ("\n".join([f"Rank {first.rank} failed first: {what}.", *lines]),)
    error.msg, error.error_index, error.error_pid = error.args[0], first.rank, -1
    return error


def _traceback(rank: int, lines: Sequence[str]) -> Sequence[str]:
    header = f"Process Rank {rank}:"  # what `multiprocessing` writes before the traceback of a process
    return lines[lines.index(header) + 1 :] if header in lines else ()
