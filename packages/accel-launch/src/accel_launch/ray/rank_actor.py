"""The actor that runs one rank on the machine where Ray has put it."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO

from accel_launch.launchers.local import free_port
from accel_launch.launchers.ray import FOLDER_THERE, PYTHON_THERE
from accel_launch.ray.placement import Place
from accel_launch.remote_protocol import Order
from accel_state.environment import snapshot

# What is written within this time is sent together.
_BATCH_S = 0.02
_CHUNK = 1 << 20
_GPU_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "ONEAPI_DEVICE_SELECTOR",
)


class RankActor:
    """Runs `accel_launch.remote_node`, which ends its rank when its input ends, so when this actor is gone.

    `run` and `send` are called at the same time.
    """

    def __init__(self) -> None:
        self._input: IO[bytes] | None = None

    def place(self) -> Place:
        """Return where it is."""
        import ray

        context = ray.get_runtime_context()
        environ = snapshot()
        return Place(
            context.get_node_id(),
            ray.util.get_node_ip_address(),
            socket.gethostname(),
            tuple(context.get_accelerator_ids().get("GPU", ())),
            next((name for name in _GPU_VARIABLES if environ.get(name)), None),
        )

    def free_port(self) -> int:
        """Return a port that is free here."""
        return free_port()

    def run(self, order: bytes) -> Iterator[tuple[int, bytes]]:
        """Run the rank of an `Order`; yield what it writes, each time with 1 for stdout or 2 for stderr."""
        program = self._start(_as_seen_here(Order.decode(order)).encode())
        assert program.stdout is not None
        assert program.stderr is not None
        with selectors.DefaultSelector() as selector:
            for number, pipe in ((1, program.stdout), (2, program.stderr)):
                selector.register(pipe, selectors.EVENT_READ, number)
            while selector.get_map():
                for key, _ in selector.select():
                    time.sleep(_BATCH_S)
                    chunk = os.read(key.fd, _CHUNK)
                    if chunk:
                        yield key.data, chunk
                    else:
                        selector.unregister(key.fileobj)
        program.wait()

    def send(self, signum: int) -> None:
        """Send the rank a signal, if it still runs."""
        assert self._input is not None
        try:
            self._input.write(b"%d\n" % signum)
        except BrokenPipeError:
            return

    def _start(self, order: bytes) -> subprocess.Popen[bytes]:
        # Ray's processes block SIGINT, and a program inherits that from the thread that starts it.
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, ())
        program = subprocess.Popen(
            [sys.executable, "-P", "-m", "accel_launch.remote_node"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert program.stdin is not None
        program.stdin.write(order)
        self._input = program.stdin
        return program


def _as_seen_here(order: Order) -> Order:
    """Return the order with the Python and the folder of this actor, where it leaves them open."""
    (process,) = order.processes
    python, *rest = process.argv
    process = replace(
        process,
        argv=(sys.executable if python == PYTHON_THERE else python, *rest),
        cwd=Path.cwd() if str(process.cwd) == FOLDER_THERE else process.cwd,
    )
    return replace(order, processes=(process,))
