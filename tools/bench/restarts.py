"""Kill ranks every few seconds: ``python -m tools.bench.restarts``, inside the environment of the tests.

Measures for each launcher the seconds from a kill to the first new step, and the goodput: the share of the time that
was spent on steps that count. Checks that losses are those of a training without kills, and what is left behind.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from accel_launch.launchers.local import free_port

_SCRIPT = Path(__file__).with_name("restarted_training.py")
_NUM_RESTARTS = 10_000
_ACCEL = (
    f"{sys.executable} -m accel_launch launch --cpu --num_processes 2 --quiet --max_restarts {_NUM_RESTARTS}"
)
_ACCEL_MACHINE = (
    f"{_ACCEL} --num_machines 2 --main_process_ip 127.0.0.1 --main_process_port PORT --machine_rank"
)
_TORCHRUN = f"{sys.executable} -m torch.distributed.run --max_restarts {_NUM_RESTARTS}"
_TORCHRUN_MACHINE = (
    f"{_TORCHRUN} --nnodes 2 --rdzv_backend c10d --rdzv_endpoint 127.0.0.1:PORT --local_addr 127.0.0.1"
)
# The commands that each gives, one for each machine.
LAUNCHERS = {
    "accel": [_ACCEL],
    "accel-cold": [f"{_ACCEL} --no_python env {sys.executable} -u"],  # there is no standby for `env`
    "accel-machines": [f"{_ACCEL_MACHINE} {rank}" for rank in range(2)],
    "torchrun": [f"{_TORCHRUN} --nproc_per_node 2"],
    "torchrun-machines": [_TORCHRUN_MACHINE] * 2,
}
_VICTIMS = ((0,), (1,), (0, 1))
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Step:
    """One step of rank 0."""

    at: float
    attempt: int
    step: int
    loss: str


@dataclass(frozen=True)
class Usage:
    """The open files and the memory of the processes that start the ranks; of that, of a standby; and of one rank."""

    num_descriptors: int
    memory_mib: float
    standby_mib: float
    rank_mib: float


@dataclass(frozen=True)
class Progress:
    """The steps of one training, and the seconds from each kill to the first step after it.

    ``usages`` are those before the first kill and after each. ``left`` are the processes and the shared memory that
    the launchers have left behind.
    """

    seconds: float
    steps: tuple[Step, ...]
    recoveries_s: tuple[float, ...]
    usages: tuple[Usage, ...]
    left: tuple[str, ...]
    output: str

    @property
    def step_s(self) -> float:
        """The mean time of a step, with the saves, without restarts."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return statistics.fmean(
            after.at - before.at for before, after in pairs if before.attempt == after.attempt
        )

    @property
    def goodput(self) -> float:
        """The share of the time that was spent on steps that count, each once."""
        return (max(each.step for each in self.steps) - self.steps[0].step) * self.step_s / self.seconds

    @property
    def losses(self) -> dict[int, set[str]]:
        """The losses of each step, of which steps that were repeated have several, which should be equal."""
        losses: dict[int, set[str]] = {}
        for each in self.steps:
            losses.setdefault(each.step, set()).add(each.loss)
        return losses


def train(
    commands: Sequence[str],
    *,
    num_kills: int = 0,
    gap_s: float = 2,
    num_steps: int = 0,
    num_workers: int = 0,
) -> Progress:
    """Train, killing a rank or both each ``gap_s`` until ``num_kills``, and then until ``num_steps`` are made.

    ``num_workers`` load the batches of each rank, into shared memory.
    """
    choice = random.Random(0)
    shared_before = _shared_memory()
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        log = stack.enter_context((folder / "log").open("w+"))
        arguments = [str(_SCRIPT), place, str(num_workers)]
        port = str(free_port())
        launchers = [
            psutil.Popen([*shlex.split(each.replace("PORT", port)), *arguments], stdout=log, stderr=log)
            for each in commands
        ]
        try:
            first = _wait_for_step(launchers, folder)
            recoveries: list[float] = []
            usages = [_usage(launchers, folder)]
            for _ in range(num_kills):
                time.sleep(gap_s)
                latest = _steps(folder)[-1].attempt
                killed_at = time.time()
                for rank in choice.choice(_VICTIMS):
                    with suppress(ProcessLookupError):  # its launcher was faster
                        os.kill(_ranks(folder)[rank], signal.SIGKILL)
                recoveries.append(_wait_for_step(launchers, folder, attempt=latest + 1).at - killed_at)
                usages.append(_usage(launchers, folder))
            _wait_for_step(launchers, folder, step=num_steps)
            last = time.time()
            family = _family(launchers)
        finally:
            for launcher in launchers:
                launcher.terminate()
            _, alive = psutil.wait_procs(launchers, timeout=60)
            for process in alive:
                process.kill()
        _, alive = psutil.wait_procs(family, timeout=10)
        log.seek(0)
        return Progress(
            last - first.at,
            tuple(_steps(folder)),
            tuple(recoveries),
            tuple(usages),
            (*map(str, alive), *sorted(_shared_memory() - shared_before - _mapped())),
            log.read(),
        )


def _ranks(folder: Path) -> list[int]:
    return [int((folder / f"rank_{rank}").read_text()) for rank in range(2)]


def _family(launchers: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [each for launcher in launchers for each in (launcher, *launcher.children(recursive=True))]


def _usage(launchers: Sequence[psutil.Process], folder: Path) -> Usage:
    ranks = [psutil.Process(pid) for pid in _ranks(folder)]
    of_ranks = {each.pid for rank in ranks for each in (rank, *rank.children(recursive=True))}
    keepers = [each for each in _family(launchers) if each.pid not in of_ranks]
    standbys = [each for each in keepers if any("standby_program" in word for word in each.cmdline())]
    return Usage(
        sum(each.num_fds() for each in keepers),
        _memory_mib(keepers),
        _memory_mib(standbys[:1]),
        _memory_mib(ranks[:1]),
    )


def _memory_mib(processes: Sequence[psutil.Process]) -> float:
    return sum(each.memory_info().rss for each in processes) / 2**20


def _shared_memory() -> set[str]:
    """Return the shared memory, semaphores and queues of the machine: files of POSIX, numbers of System V."""
    tables = [Path("/proc/sysvipc", kind) for kind in ("shm", "sem", "msg")]
    numbers = {
        f"{table}: {line.split()[1]}" for table in tables for line in table.read_text().splitlines()[1:]
    }
    return numbers | {str(file) for file in Path("/dev/shm").iterdir()}  # noqa: S108


def _mapped() -> set[str]:
    """Return the files that some process has mapped: they are in use, by others."""
    files: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            files |= {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines()}
    return files


def _steps(folder: Path) -> list[Step]:
    lines = (folder / "steps").read_text().splitlines(keepends=True)
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [Step(float(at), int(attempt), int(step), loss) for at, attempt, step, loss in fields]


def _wait_for_step(
    launchers: Collection[psutil.Popen], folder: Path, *, attempt: int = 0, step: int = 0
) -> Step:
    """Return the first step of an attempt, or of a later one, that is ``step`` or a later one."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end and all(launcher.poll() is None for launcher in launchers):
        with suppress(FileNotFoundError):
            for each in _steps(folder):
                if each.attempt >= attempt and each.step >= step:
                    return each
        time.sleep(0.02)
    told = (folder / "log").read_text()[-2000:]
    raise RuntimeError(f"The launcher did not get to step {step} of attempt {attempt}: {told}")


def main(words: Sequence[str]) -> int:
    """Measure the launchers one after the other, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.restarts", description=__doc__)
    parser.add_argument("--gap", type=float, default=15.0, help="seconds between kills")
    parser.add_argument("--kills", type=int, default=3, help="number of kills")
    parser.add_argument(
        "--only", nargs="*", help=f"the names of launchers to measure: {', '.join(LAUNCHERS)}"
    )
    given = parser.parse_args(words)
    undisturbed = train(LAUNCHERS["accel"], num_steps=200)
    print(f"undisturbed: {1 / undisturbed.step_s:.1f} steps/s, load {os.getloadavg()[0]:.1f}", flush=True)
    for name in given.only or LAUNCHERS:
        got = train(LAUNCHERS[name], gap_s=given.gap, num_kills=given.kills)
        same = all(
            losses == undisturbed.losses.get(step, losses) and len(losses) == 1
            for step, losses in got.losses.items()
        )
        once, often = got.usages[1], got.usages[-1]
        print(
            f"{name}: {len(got.recoveries_s)} kills, {statistics.median(got.recoveries_s):.2f} s to the first new step "
            f"({min(got.recoveries_s):.2f} to {max(got.recoveries_s):.2f}), goodput {got.goodput:.1%}, losses "
            f"{'equal' if same else 'DIFFER'}, descriptors {once.num_descriptors} to {often.num_descriptors}, memory "
            f"{once.memory_mib:.0f} to {often.memory_mib:.0f} MiB, standby {often.standby_mib:.0f} MiB, "
            f"left {list(got.left)}, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
