"""The program that runs a plan on Ray, as ``python -P -m accel_launch.ray.driver``.

The first line of its standard input is the order of the launcher, as JSON; each further line is the number of a signal
for the ranks, and the end of the input means that the launcher is gone. How the ranks ended is written to a file that
the order names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from accel_launch.messages import complain
from accel_launch.processes.output import MESSAGE_MARK, complete_lines, write_all
from accel_launch.processes.signals import ENDING_SIGNALS, FORWARDED_SIGNALS
from accel_launch.ray.placement import Place, PlacedRank, placed_ranks
from accel_launch.ray.rank_actor import RankActor
from accel_state.errors import AccelError, LaunchError

# Beyond the time that the ranks have: for the way to the nodes and back.
_SLACK_S = 3.0
_STEP_S = 0.1


def main() -> int:
    """Run the plan; return 0 if the ranks have run, however they ended."""
    # Unbuffered, since a thread that waits within a buffer's lock would disturb the end of the program.
    orders = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    order = json.loads(orders.readline())
    threading.Thread(target=_pass_signals_on, args=(orders,), daemon=True).start()
    try:
        _run(order)
    except AccelError as error:
        complain(str(error))
        return 1
    return 0


def _pass_signals_on(orders: IO[bytes]) -> None:
    for line in orders:
        os.kill(os.getpid(), int(line))
    os.kill(os.getpid(), signal.SIGKILL)  # without its driver, Ray ends the actors


def _run(order: Mapping[str, Any]) -> None:
    import ray
    from ray.exceptions import RayError

    for signum in ENDING_SIGNALS:
        signal.signal(signum, _leave)
    try:
        _connect(order)
        group = _reserved(order)
        actors, ranks = _actors(order, group)
        _Run(order, actors, ranks).watch()
    except RayError as error:
        raise LaunchError(f"Ray cannot run this: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()  # ends the actors and gives back what was reserved; a cluster of our own ends with it


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def _connect(order: Mapping[str, Any]) -> None:
    import ray

    own_cluster: dict[str, Any] = {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": len(order["processes"]) * order["resources"]["CPU"],  # it is for this run alone
    }
    where = {"address": order["address"]} if order["address"] else own_cluster
    try:
        ray.init(**where, runtime_env=order["runtime_env"], log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(
            f"The Ray cluster `{order['address'] or 'local'}` cannot be used: {error}"
        ) from error


def _reserved(order: Mapping[str, Any]) -> Any:
    """Return a placement group with room for all ranks, as soon as there is room."""
    import ray
    from ray.util.placement_group import placement_group

    num_ranks, num_machines = len(order["processes"]), order["num_machines"]
    num_bundles = num_ranks if num_machines == 1 else num_machines
    each = {name: amount * (num_ranks // num_bundles) for name, amount in order["resources"].items()}
    group = placement_group([each] * num_bundles, strategy="PACK" if num_machines == 1 else "STRICT_SPREAD")
    has = {name: amount for name, amount in ray.cluster_resources().items() if name in each}
    # A cluster of our own does not grow.
    can_fit = bool(order["address"]) or all(has.get(name, 0) >= num_bundles * each[name] for name in each)
    deadline = time.monotonic() + order["wait_s"]
    while not (can_fit and group.wait(timeout_seconds=1)):
        if not can_fit or time.monotonic() >= deadline:
            within = f" within {order['wait_s']:g} s" if can_fit else ""
            raise LaunchError(
                f"The Ray cluster has no room for {num_bundles} x {each}{within}; all its nodes together have {has}. "
                "Ask for less, use `--cpu` where it has no GPUs, or raise `--ray_wait_s`."
            )
    return group


def _actors(order: Mapping[str, Any], group: Any) -> tuple[Sequence[Any], list[PlacedRank]]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resources = dict(order["resources"])
    num_cpus, num_gpus = resources.pop("CPU"), resources.pop("GPU", 0)
    num_ranks, num_bundles = len(order["processes"]), len(group.bundle_specs)
    actor_of = ray.remote(RankActor)
    actors = [
        actor_of.options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=resources,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=rank * num_bundles // num_ranks
            ),
        ).remote()
        for rank in range(num_ranks)
    ]
    places: list[Place] = ray.get([actor.place.remote() for actor in actors])
    return actors, placed_ranks(places)


class _Run:
    """The ranks while they run: their output passed on, signals and the first failure told to all."""

    def __init__(self, order: Mapping[str, Any], actors: Sequence[Any], ranks: Sequence[PlacedRank]) -> None:
        self._order = order
        self._actors = {rank.rank: actors[rank.actor] for rank in ranks}
        self._ranks = {rank.rank: rank for rank in ranks}
        self._signals: list[int] = []
        self._rest: dict[tuple[int, int], bytearray] = {}
        self._endings: dict[int, dict[str, Any]] = {}
        self._interrupted_by: int | None = None
        self._deadline: float | None = None
        self._num_memory_kills = 0

    def watch(self) -> None:
        """Run all ranks to their end and write down how they ended."""
        import ray

        for signum in FORWARDED_SIGNALS:
            signal.signal(signum, lambda signum, frame: self._signals.append(signum))
        streams = {
            self._actors[rank].run.options(num_returns="streaming").remote(plan): rank
            for rank, plan in self._plans().items()
        }
        while streams:
            self._handle_signals()
            ready, _ = ray.wait(list(streams), num_returns=1, timeout=_STEP_S)
            if ready:
                ready, _ = ray.wait(list(streams), num_returns=len(streams), timeout=0)
            for stream in ready:
                if not self._pass_on(streams[stream], stream):
                    self._end(streams.pop(stream))
            if self._deadline is not None and time.monotonic() >= self._deadline:
                for rank in streams.values():
                    ray.kill(self._actors[rank])
                self._deadline = float("inf")  # what ends from now on was killed
        self._write_result()

    def _plans(self) -> dict[int, dict[str, Any]]:
        import ray

        is_one_node = len({rank.place.node for rank in self._ranks.values()}) == 1
        first = self._ranks[0]
        port = self._order["port"] or ray.get(self._actors[0].free_port.remote())
        meeting = {
            "MASTER_ADDR": "127.0.0.1" if is_one_node else first.place.address,
            "MASTER_PORT": str(port),
        }
        plans = {}
        for rank, process in enumerate(self._order["processes"]):
            environ = process["environ"] | self._ranks[rank].environ | meeting
            plans[rank] = {
                "grace_period_s": self._order["grace_period_s"],
                "processes": [process | {"environ": environ}],
            }
        return plans

    def _pass_on(self, rank: int, stream: Any) -> bool:
        """Pass on what a rank has written; return whether there may be more."""
        import ray

        try:
            number, chunk = ray.get(next(stream))
        except StopIteration:
            return False
        except ray.exceptions.RayError as error:
            self._end(rank, lost_by=str(error).strip().splitlines()[-1])
            return False
        lines = complete_lines(self._rest.setdefault((rank, number), bytearray()), chunk)
        for line in lines:
            if line.startswith(MESSAGE_MARK):
                self._read_message(rank, line.removeprefix(MESSAGE_MARK))
        _write(number, b"".join(line for line in lines if not line.startswith(MESSAGE_MARK)))
        return True

    def _read_message(self, rank: int, message: bytes) -> None:
        if not message.strip():
            return
        told = json.loads(message)
        (ending,) = told["ranks"]
        failed_ago_s = ending.pop("failed_ago_s")
        self._num_memory_kills += told["num_memory_kills"]
        self._endings[rank] = ending | {
            "failed_at": None if failed_ago_s is None else time.monotonic() - failed_ago_s,
            "was_ended": ending["was_ended"] or told["interrupted_by"] is not None,
        }

    def _end(self, rank: int, lost_by: str = "its process on the node ended without a word") -> None:
        for number in (1, 2):
            _write(number, self._rest.pop((rank, number), bytearray()))
        if rank not in self._endings:
            self._endings[rank] = {
                "rank": rank,
                "return_code": -signal.SIGKILL,
                "was_ended": self._deadline is not None or self._interrupted_by is not None,
                "last_lines": [f"Ray lost this rank: {lost_by}"],
                "failed_at": time.monotonic(),
            }
        if self._endings[rank]["return_code"] != 0 and self._deadline is None:
            self._tell_all(signal.SIGTERM)

    def _handle_signals(self) -> None:
        while self._signals:
            signum = self._signals.pop(0)
            if signum not in ENDING_SIGNALS:
                for actor in self._running():
                    actor.send.remote(signum)
                continue
            self._interrupted_by = signum
            self._tell_all(signum)

    def _tell_all(self, signum: int) -> None:
        self._deadline = time.monotonic() + self._order["grace_period_s"] + _SLACK_S
        for actor in self._running():
            actor.send.remote(signum)

    def _running(self) -> list[Any]:
        return [actor for rank, actor in self._actors.items() if rank not in self._endings]

    def _write_result(self) -> None:
        now = time.monotonic()
        ranks = []
        for rank, ending in sorted(self._endings.items()):
            failed_at = ending.pop("failed_at")
            ago_s = None if failed_at is None else now - failed_at
            ranks.append(ending | {"host": self._ranks[rank].place.hostname, "failed_ago_s": ago_s})
        result = {
            "ranks": ranks,
            "interrupted_by": self._interrupted_by,
            "num_memory_kills": self._num_memory_kills,
        }
        Path(self._order["result"]).write_text(json.dumps(result), encoding="utf-8")


def _write(descriptor: int, data: bytes | bytearray) -> None:
    with suppress(BrokenPipeError):  # of a reader that is gone
        write_all(descriptor, data)


if __name__ == "__main__":
    sys.exit(main())
