"""What a run may do beyond one start of its processes: start again, keep logs, meet other machines."""

from __future__ import annotations

from dataclasses import dataclass

from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import Child
from accel_launch.processes.logs import LogFolder
from accel_launch.processes.output import Output


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often all processes of a run start again once one has failed, and with what.

    ``logs`` keeps their output in files. ``rendezvous`` is a program that gives them their ranks before each start and
    may call for another one (see `accel_launch.rendezvous`).
    """

    maximum: int = 0
    logs: LogFolder | None = None
    rendezvous: ProcessPlan | None = None

    def child(
        self,
        plan: ProcessPlan,
        place: int,
        *,
        attempt: int,
        restarts: int,
        prefix: str,
        is_by_line: bool,
        orders: bytes | None,
    ) -> Child:
        """Return the process at ``place`` in an attempt, with the variables that torchrun has for it.

        ``attempt`` counts the starts on this machine, ``restarts`` those that followed a failure on any.
        """
        variables = {"TORCHELASTIC_RESTART_COUNT": str(restarts)} if restarts else {}
        logs = None if self.logs is None else self.logs.of(attempt, place)
        if logs is not None:
            variables["TORCHELASTIC_ERROR_FILE"] = str(logs.error_file)
        output = Output(prefix=prefix, is_by_line=is_by_line, logs=logs)
        return Child(plan.with_variables(**variables), output, orders=orders)


NO_RESTARTS = Restarts()
