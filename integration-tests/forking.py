"""Runs of ranks that begin at once: one process imports everything, then forks the ranks of each requested run.

A script hands `serve` what a rank does; `Runs` starts that script and asks it for runs. Between them go one JSON object
of options per line, answered with the process ids and, when all ranks have ended, with their exit codes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import tempfile
import traceback
from pathlib import Path

import torch
from torch import nn

from accel import Accelerator
from accel_state.runtime import reset_runtime

sys.path.append(str(Path(__file__).parents[1]))  # for `tools`, if this is run by hand
from tools.harness.fork_server import fork_server


class Runs:
    """The process of a script that serves runs; all of them end with the block."""

    def __init__(self, script):
        self.script = script

    def __enter__(self):
        self.holder = hold_port()
        (stdin, asked), (answers, stdout) = os.pipe(), os.pipe()
        self.asked, self.answers = os.fdopen(asked, "w"), os.fdopen(answers)
        with os.fdopen(stdin) as theirs, os.fdopen(stdout) as out:
            environ = {**os.environ, "OMP_NUM_THREADS": "1"}
            streams = (theirs, out, sys.__stderr__)
            self.process = fork_server().start((str(self.script),), environ=environ, streams=streams)
        return self

    def __exit__(self, *_):
        self.holder.close()
        self.asked.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=20)
        self.answers.close()

    def start(self, **options):
        """Start ``num_processes`` ranks with the further options, and return their process ids."""
        self.asked.write(json.dumps({**options, "port": self.holder.getsockname()[1]}) + "\n")
        self.asked.flush()
        return self._answer()

    def codes(self):
        """Wait for the ranks that were started, and return their exit codes."""
        return self._answer()

    def _answer(self):
        line = self.answers.readline()
        assert line, f"`{self.script}` has ended"
        return json.loads(line)


def serve(body, *, before=None):
    """Fork ranks that call ``body(**options)`` for each line of the standard input, after ``before(**options)``."""
    torch.set_num_threads(1)
    warm_up()
    for line in sys.stdin:
        options = json.loads(line)
        if before is not None:
            before(**options)
        num_processes, port = options.pop("num_processes"), options.pop("port")
        pids = [fork_rank(body, rank, num_processes, port, options) for rank in range(num_processes)]
        print(json.dumps(pids), flush=True)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]), flush=True)


def fork_rank(body, rank, num_processes, port, options):
    pid = os.fork()
    if pid:
        return pid
    if num_processes > 1:
        place = {
            "RANK": rank,
            "LOCAL_RANK": rank,
            "WORLD_SIZE": num_processes,
            "LOCAL_WORLD_SIZE": num_processes,
        }
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        code = 1
    try:
        body(**options)
        code = 0
    except SystemExit as leaving:
        code = leaving.code
    except BaseException:  # noqa: BLE001 (a forked child ends here, whatever happens)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def hold_port():
    """Return a socket bound to a port that no other process is given, but that rank 0 can listen to."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def warm_up():
    """Import what the first save imports, once for all forks."""
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(Path(folder) / "checkpoint")
        accelerator.load_state(Path(folder) / "checkpoint")
    reset_runtime()
