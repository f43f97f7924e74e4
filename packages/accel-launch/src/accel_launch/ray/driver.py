"""The program that runs a plan on Ray, as ``python -P -m accel_launch.ray.driver``.

It keeps to `accel_launch.remote_protocol` as one machine would; a line before the order says, as JSON, which cluster to
use and what to reserve there.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import IO, Any

from accel_launch.messages import complain
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.output import MESSAGE_MARK, complete_lines, write_all
from accel_launch.processes.signals import ENDING_SIGNALS, FORWARDED_SIGNALS
from accel_launch.ray.placement import Place, PlacedRank, placed_ranks
from accel_launch.ray.rank_actor import RankActor
from accel_launch.remote_protocol import Endings, Order
from accel_launch.report import RankEnding
from accel_state.errors import AccelError, LaunchError

# Beyond the time that the ranks have: for the way to the nodes and back.
_SLACK_S = 3.0


def main() -> int:
    """Run the plan; return 0 if the ranks have run, however they ended."""
    # Unbuffered, since a thread that waits within a buffer's lock would disturb the end of the program.
    lines = open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)  # noqa: SIM115
    cluster, order = json.loads(lines.readline()), Order.decode(lines.readline())
    threading.Thread(target=_pass_signals_on, args=(lines,), daemon=True).start()
    try:
        endings = _run(cluster, order)
    except AccelError as error:
        complain(str(error))
        return 1
    os.write(2, endings.encode())
    return 0


def _pass_signals_on(lines: IO[bytes]) -> None:
    for line in lines:
        os.kill(os.getpid(), int(line))
    os.kill(os.getpid(), signal.SIGKILL)  # without its driver, Ray ends the actors


def _run(cluster: Mapping[str, Any], order: Order) -> Endings:
    import ray
    from ray.exceptions import RayError

    for signum in ENDING_SIGNALS:
        signal.signal(signum, _leave)
    num_ranks = len(order.processes)
    try:
        _connect(cluster, num_ranks)
        actors, ranks = _actors(cluster["resources"], num_ranks, _reserved(cluster, num_ranks))
        port = cluster["port"] or ray.get(actors[ranks[0].actor].free_port.remote())
        endings = asyncio.run(_Run(order, actors, ranks, port).watch())
        for signum in FORWARDED_SIGNALS:  # the ranks have ended; what is left is to say how
            signal.signal(signum, signal.SIG_IGN)
        return endings
    except RayError as error:
        raise LaunchError(f"Ray cannot run this: {str(error).strip().splitlines()[-1]}") from error
    finally:
        ray.shutdown()  # ends the actors and gives back what was reserved; a cluster of our own ends with it


def _leave(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)


def _connect(cluster: Mapping[str, Any], num_ranks: int) -> None:
    import ray

    own_cluster: dict[str, Any] = {
        "address": "local",
        "include_dashboard": False,
        "num_cpus": num_ranks * cluster["resources"]["CPU"],  # it is for this run alone
    }
    where = {"address": cluster["address"]} if cluster["address"] else own_cluster
    try:
        ray.init(**where, runtime_env=cluster["runtime_env"], log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(
            f"The Ray cluster `{cluster['address'] or 'local'}` cannot be used: {error}"
        ) from error


def _reserved(cluster: Mapping[str, Any], num_ranks: int) -> Any:
    """Return a placement group with room for all ranks, as soon as there is room."""
    import ray
    from ray.util.placement_group import placement_group

    num_machines = cluster["num_machines"]
    num_bundles = num_ranks if num_machines == 1 else num_machines
    each = {name: amount * (num_ranks // num_bundles) for name, amount in cluster["resources"].items()}
    group = placement_group([each] * num_bundles, strategy="PACK" if num_machines == 1 else "STRICT_SPREAD")
    has = {name: amount for name, amount in ray.cluster_resources().items() if name in each}
    # A cluster of our own does not grow.
    can_fit = bool(cluster["address"]) or all(has.get(name, 0) >= num_bundles * each[name] for name in each)
    deadline = time.monotonic() + cluster["wait_s"]
    while not (can_fit and group.wait(timeout_seconds=1)):
        if not can_fit or time.monotonic() >= deadline:
            within = f" within {cluster['wait_s']:g} s" if can_fit else ""
            raise LaunchError(
                f"The Ray cluster has no room for {num_bundles} x {each}{within}; all its nodes together have {has}. "
                "Ask for less, use `--cpu` where it has no GPUs, or raise `--ray_wait_s`."
            )
    return group


def _actors(
    resources: Mapping[str, float], num_ranks: int, group: Any
) -> tuple[Sequence[Any], list[PlacedRank]]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    num_bundles = len(group.bundle_specs)
    actor_of = ray.remote(RankActor)
    actors = [
        actor_of.options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            resources=others,
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
    """The ranks while they run: their output passed on, signals and the first failure sent to all."""

    def __init__(self, order: Order, actors: Sequence[Any], ranks: Sequence[PlacedRank], port: int) -> None:
        self._order = order
        self._actors = {rank.rank: actors[rank.actor] for rank in ranks}
        self._ranks = ranks
        is_one_node = len({rank.place.node for rank in ranks}) == 1
        self._meeting = {
            "MASTER_ADDR": "127.0.0.1" if is_one_node else ranks[0].place.address,
            "MASTER_PORT": str(port),
        }
        self._running = set(self._actors)
        self._is_ending = False
        self._num_memory_kills = 0

    async def watch(self) -> Endings:
        """Run all ranks to their end and return how they ended."""
        loop = asyncio.get_running_loop()
        for signum in FORWARDED_SIGNALS:
            loop.add_signal_handler(signum, self._send, signum)
        endings = await asyncio.gather(*map(self._follow, self._ranks))
        return Endings(tuple(endings), num_memory_kills=self._num_memory_kills)

    async def _follow(self, rank: PlacedRank) -> RankEnding:
        """Run one rank, pass on what it writes, and return how it ended."""
        from ray.exceptions import RayError

        rest = {1: bytearray(), 2: bytearray()}
        messages: list[str] = []
        lost_by = "its process on the node ended without a word"
        try:
            run = self._actors[rank.rank].run.options(num_returns="streaming")
            async for reference in run.remote(self._order_of(rank).encode()):
                number, chunk = await reference
                lines = complete_lines(rest[number], chunk)
                messages += [line.decode(errors="replace") for line in lines if line.startswith(MESSAGE_MARK)]
                _write(number, b"".join(line for line in lines if not line.startswith(MESSAGE_MARK)))
        except RayError as error:
            lost_by = str(error).strip().splitlines()[-1]
        for number, line in rest.items():
            _write(number, line)
        said = Endings.last_in(messages)
        if said is None:
            why = f"Ray lost this rank: {lost_by}"
            ending = ChildEnding(-signal.SIGKILL, time.monotonic(), self._is_ending, (why,))
        else:
            ending = said.ranks[0].ending
            self._num_memory_kills += said.num_memory_kills
        self._running.remove(rank.rank)
        if ending.return_code != 0 and not self._is_ending:
            self._send(signal.SIGTERM)
        return RankEnding(rank.rank, rank.place.hostname, ending)

    def _order_of(self, rank: PlacedRank) -> Order:
        process = self._order.processes[rank.rank].with_variables(**rank.environ, **self._meeting)
        return replace(self._order, processes=(process,))

    def _send(self, signum: int) -> None:
        """Send a signal to all ranks; one that ends the run starts the time that they have for it."""
        if signum in ENDING_SIGNALS and not self._is_ending:
            self._is_ending = True
            asyncio.get_running_loop().call_later(self._order.grace_period_s + _SLACK_S, self._kill)
        for rank in self._running:
            self._actors[rank].send.remote(signum)

    def _kill(self) -> None:
        import ray

        for rank in self._running:
            ray.kill(self._actors[rank])


def _write(descriptor: int, data: bytes | bytearray) -> None:
    with suppress(BrokenPipeError):  # of a reader that is gone
        write_all(descriptor, data)


if __name__ == "__main__":
    sys.exit(main())
