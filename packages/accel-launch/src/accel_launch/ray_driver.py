"""The program that runs a plan on Ray, as ``python -P -m accel_launch.ray_driver``, and the actors that it starts.

It keeps to `accel_launch.remote_protocol` as one machine would; a line before the order says, as JSON, which cluster to
use and what to reserve there. Each actor runs a `remote_node` for one rank, so Ray does not supervise anything.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import import_module
from typing import IO, Any

from accel_launch.launchers.local import free_port, rank_variables
from accel_launch.messages import complain
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.output import MESSAGE_MARK, complete_lines, write_all
from accel_launch.processes.signals import ENDING_SIGNALS, FORWARDED_SIGNALS
from accel_launch.remote_protocol import Endings, Order
from accel_state.environment import snapshot
from accel_state.errors import AccelError, LaunchError

# What is written within this time is sent together.
_BATCH_S = 0.02
_CHUNK = 1 << 20
_GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR",
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where Ray has put an actor; ``gpus`` are the ids of those that it has reserved."""

    node: str
    address: str
    free_port: int = 0
    gpus: tuple[str, ...] = ()
    gpu_variable: str | None = None


class RankActor:
    """Runs `remote_node`, which ends its rank when its input ends, so when this actor is gone.

    `run` and `send` are called at the same time.
    """

    def place(self) -> Place:
        """Return where it is."""
        import ray

        context, environ = ray.get_runtime_context(), snapshot()
        return Place(
            context.get_node_id(),
            ray.util.get_node_ip_address(),
            free_port(),
            tuple(context.get_accelerator_ids().get("GPU", ())),
            next((name for name in _GPU_VARIABLES if environ.get(name)), None),
        )

    def run(self, order: bytes) -> Iterator[tuple[int, bytes]]:
        """Run the rank of an `Order`; yield what it writes, each time with 1 for stdout or 2 for stderr."""
        # Ray's processes block SIGINT, and a program inherits that from the thread that starts it.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        command, pipe = (sys.executable, "-P", "-m", "accel_launch.remote_node"), subprocess.PIPE
        node = self._node = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert node.stdin is not None
        node.stdin.write(order)
        with selectors.DefaultSelector() as selector:
            for number, stream in ((1, node.stdout), (2, node.stderr)):
                assert stream is not None
                selector.register(stream, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    time.sleep(_BATCH_S)
                    if chunk := os.read(key.fd, _CHUNK):
                        yield key.data, chunk
                    else:
                        selector.unregister(key.fileobj)
        node.wait()

    def send(self, signum: int) -> None:
        """Send the rank a signal, if it still runs."""
        assert self._node.stdin is not None
        with suppress(BrokenPipeError):
            self._node.stdin.write(b"%d\n" % signum)


def in_order(places: Sequence[Place]) -> list[tuple[int, dict[str, str]]]:
    """Return for each rank the number of its actor and the variables that follow from its place.

    Ranks are numbered node by node, and those of a node by their GPUs; rank 0 is on the node of the first actor. All
    ranks of a node see all its GPUs, so that `LOCAL_RANK` names the own one, as with torchrun. Nodes may have
    unequally many.
    """
    nodes = list(dict.fromkeys(place.node for place in places))
    ranks: list[tuple[int, dict[str, str]]] = []
    for node_rank, node in enumerate(nodes):
        here = [actor for actor, place in enumerate(places) if place.node == node]
        # By length first: `10` comes after `9`, and identifiers of another kind stay as they are.
        here.sort(key=lambda actor: [(len(gpu), gpu) for gpu in places[actor].gpus])
        gpus = ",".join(gpu for actor in here for gpu in places[actor].gpus)
        for local_rank, actor in enumerate(here):
            environ = rank_variables(
                rank=len(ranks),
                world_size=len(places),
                local_rank=local_rank,
                local_world_size=len(here),
                machine_rank=node_rank,
                num_machines=len(nodes),
            )
            variable = places[actor].gpu_variable
            ranks.append((actor, environ | ({variable: gpus} if gpus and variable else {})))
    return ranks


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
    try:
        _connect(cluster, len(order.processes))
        actors = _actors(cluster, len(order.processes))
        ranks = _Ranks(order, actors, ray.get([actor.place.remote() for actor in actors]), cluster["port"])
        endings = asyncio.run(ranks.watch())
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

    where: dict[str, Any] = {"address": cluster["address"]}
    if not cluster["address"]:  # one for this run alone
        num_cpus = num_ranks * cluster["resources"]["CPU"]
        where = {"address": "local", "include_dashboard": False, "num_cpus": num_cpus}
    try:
        ray.init(**where, runtime_env=cluster["runtime_env"], log_to_driver=False, logging_level="warning")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise LaunchError(f"The Ray cluster `{where['address']}` cannot be used: {error}") from error


def _actors(cluster: Mapping[str, Any], num_ranks: int) -> list[Any]:
    """Return an actor for each rank, as soon as there is room for all."""
    import ray
    from ray.util.placement_group import placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    resources, num_machines = dict(cluster["resources"]), cluster["num_machines"]
    num_bundles = num_ranks if num_machines == 1 else num_machines
    each = {name: amount * (num_ranks // num_bundles) for name, amount in resources.items()}
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
    options = {
        "num_cpus": resources.pop("CPU"),
        "num_gpus": resources.pop("GPU", 0),
        "resources": resources,
        "max_concurrency": 2,
    }
    places = [
        PlacementGroupSchedulingStrategy(group, rank * num_bundles // num_ranks) for rank in range(num_ranks)
    ]
    actor_of = ray.remote(RankActor)
    return [actor_of.options(scheduling_strategy=place, **options).remote() for place in places]


class _Ranks:
    """The ranks while they run: their output is passed on, signals and the first failure are sent to all."""

    def __init__(
        self, order: Order, actors: Sequence[Any], places: Sequence[Place], port: int | None
    ) -> None:
        ranks = in_order(places)
        self._order = order
        self._actors = [actors[actor] for actor, _ in ranks]
        first = places[ranks[0][0]]
        self._addresses = [places[actor].address for actor, _ in ranks]
        is_one_node = len({place.node for place in places}) == 1
        meeting = {
            "MASTER_ADDR": "127.0.0.1" if is_one_node else first.address,
            "MASTER_PORT": str(port or first.free_port),
        }
        self._variables = [environ | meeting for _, environ in ranks]
        self._running = set(range(len(ranks)))
        self._is_ending = False

    async def watch(self) -> Endings:
        """Run all ranks to their end and return how they ended."""
        for signum in FORWARDED_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(signum, self._send, signum)
        ended = await asyncio.gather(*map(self._follow, range(len(self._actors))))
        return Endings(
            tuple(rank for each in ended for rank in each.ranks),
            num_memory_kills=sum(each.num_memory_kills for each in ended),
        )

    async def _follow(self, rank: int) -> Endings:
        """Run one rank, pass on what it writes, and return how it ended."""
        from ray.exceptions import RayError

        rest = {1: bytearray(), 2: bytearray()}
        messages: list[str] = []
        lost_by = "its process on the node ended without a word"
        try:
            process = self._order.processes[rank].with_variables(**self._variables[rank])
            run = self._actors[rank].run.options(num_returns="streaming")
            async for reference in run.remote(replace(self._order, processes=(process,)).encode()):
                number, chunk = await reference
                lines = complete_lines(rest[number], chunk)
                messages += [line.decode(errors="replace") for line in lines if line.startswith(MESSAGE_MARK)]
                _write(number, b"".join(line for line in lines if not line.startswith(MESSAGE_MARK)))
        except RayError as error:
            lost_by = str(error).strip().splitlines()[-1]
        for number, line in rest.items():
            _write(number, line)
        self._running.remove(rank)
        endings = Endings.last_in(messages)
        if endings is None:
            told, where = (f"Ray lost this rank: {lost_by}",), self._addresses[rank]
            now = time.monotonic()
            lost = ChildEnding(-signal.SIGKILL, now, self._is_ending, told, rank=rank, host=where)
            endings = Endings((lost,))
        if any(each.return_code for each in endings.ranks) and not self._is_ending:
            self._send(signal.SIGTERM)
        return endings

    def _send(self, signum: int) -> None:
        """Send a signal to all ranks; after one that ends them, each node kills its own at the end of their time."""
        self._is_ending |= signum in ENDING_SIGNALS
        for rank in self._running:
            self._actors[rank].send.remote(signum)


def _write(descriptor: int, data: bytes | bytearray) -> None:
    with suppress(BrokenPipeError):  # of a reader that is gone
        write_all(descriptor, data)


if __name__ == "__main__":
    # Under this name the nodes can find the class of the actors again.
    sys.exit(import_module("accel_launch.ray_driver").main())
