"""Kill a rank every few seconds: ``python -m tools.bench.restarts``, inside the environment of the tests.

Measures for each launcher the seconds from a kill to the first new step, and the goodput: the share of the time that
was spent on steps that count. Checks that losses are those of a training without kills.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_SCRIPT = Path(__file__).with_name("restarted_training.py")
_NUM_RESTARTS = 10_000
LAUNCHERS = {
    "accel": f"{sys.executable} -m accel_launch launch --cpu --num_processes 2 --quiet --max_restarts {_NUM_RESTARTS}",
    "torchrun": f"{sys.executable} -m torch.distributed.run --nproc_per_node 2 --max_restarts {_NUM_RESTARTS}",
}
_PATIENCE_S = 600.0


@dataclass(frozen=True)
class Step:
    """One step of rank 0."""

    at: float
    attempt: int
    step: int
    loss: str


@dataclass(frozen=True)
class Progress:
    """The steps of one training, and the seconds from each kill to the first step after it.

    ``left`` are the processes that the launcher has left behind, ``num_descriptors`` and ``memory_mib`` what the
    process that restarts the ranks has open and uses after the first and after the last kill.
    """

    seconds: float
    steps: tuple[Step, ...]
    recoveries_s: tuple[float, ...]
    num_descriptors: tuple[int, int]
    memory_mib: tuple[float, float]
    left: tuple[int, ...]
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
    command: Sequence[str],
    *,
    seconds: float,
    gap_s: float | None = None,
    num_kills: int | None = None,
    steps_between_saves: int = 20,
) -> Progress:
    """Train for ``seconds`` after the first step, killing a rank each ``gap_s``, or until ``num_kills`` are made."""
    choice = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        log = (folder / "log").open("w+")
        launcher = subprocess.Popen(
            [*command, str(_SCRIPT), place, str(steps_between_saves)], stdout=log, stderr=log
        )
        try:
            first = _wait_for_attempt(launcher, folder, 0)
            supervisor = psutil.Process(int((folder / "rank_0").read_text())).parent()
            assert supervisor is not None
            recoveries: list[float] = []
            usages = [_usage(supervisor)]
            while gap_s is not None and (
                time.time() + gap_s < first.at + seconds if num_kills is None else len(recoveries) < num_kills
            ):
                time.sleep(gap_s)
                latest = _steps(folder)[-1].attempt
                victim = int((folder / f"rank_{choice.randrange(2)}").read_text())
                os.kill(victim, signal.SIGKILL)
                killed_at = time.time()
                recoveries.append(_wait_for_attempt(launcher, folder, latest + 1).at - killed_at)
                usages.append(_usage(supervisor))
            if num_kills is None:
                time.sleep(max(0.0, first.at + seconds - time.time()))
            last = time.time()
            family = psutil.Process(launcher.pid).children(recursive=True)
        finally:
            launcher.terminate()
            try:
                launcher.wait(60)
            except subprocess.TimeoutExpired:
                launcher.kill()
                raise
        _, alive = psutil.wait_procs(family, timeout=10)
        log.seek(0)
        once, often = usages[min(1, len(usages) - 1)], usages[-1]
        return Progress(
            last - first.at,
            tuple(_steps(folder)),
            tuple(recoveries),
            (once[0], often[0]),
            (once[1], often[1]),
            tuple(process.pid for process in alive),
            log.read(),
        )


def _usage(process: psutil.Process) -> tuple[int, float]:
    return process.num_fds(), process.memory_info().rss / 2**20


def _steps(folder: Path) -> list[Step]:
    lines = (folder / "steps").read_text().splitlines(keepends=True)
    fields = [line.split() for line in lines if line.endswith("\n")]
    return [Step(float(at), int(attempt), int(step), loss) for at, attempt, step, loss in fields]


def _wait_for_attempt(launcher: subprocess.Popen[bytes], folder: Path, attempt: int) -> Step:
    """Return the first step of an attempt, or of a later one."""
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end and launcher.poll() is None:
        with suppress(FileNotFoundError):
            for each in _steps(folder):
                if each.attempt >= attempt:
                    return each
        time.sleep(0.02)
    told = (folder / "log").read_text()[-2000:]
    raise RuntimeError(f"The launcher made no step of attempt {attempt}: {told}")


def main(words: Sequence[str]) -> int:
    """Measure the launchers one after the other, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.restarts", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each training takes")
    parser.add_argument("--gap", type=float, default=15.0, help="seconds between kills")
    parser.add_argument("--kills", type=int, help="number of kills, instead of --seconds")
    parser.add_argument("--launcher", action="append", metavar="NAME=COMMAND", help="others to compare with")
    parser.add_argument("--only", nargs="*", help="the names of launchers to measure")
    given = parser.parse_args(words)
    launchers = LAUNCHERS | dict(each.split("=", 1) for each in given.launcher or ())
    launchers = {name: command for name, command in launchers.items() if name in (given.only or launchers)}
    undisturbed = train(shlex.split(LAUNCHERS["accel"]), seconds=min(given.seconds, 60.0))
    print(f"undisturbed: {1 / undisturbed.step_s:.1f} steps/s, load {os.getloadavg()[0]:.1f}", flush=True)
    for name, command in launchers.items():
        got = train(shlex.split(command), seconds=given.seconds, gap_s=given.gap, num_kills=given.kills)
        same = all(
            losses == undisturbed.losses.get(step, losses) and len(losses) == 1
            for step, losses in got.losses.items()
        )
        print(
            f"{name}: {len(got.recoveries_s)} kills, {statistics.median(got.recoveries_s):.2f} s to the first new step "
            f"({min(got.recoveries_s):.2f} to {max(got.recoveries_s):.2f}), goodput "
            f"{got.goodput:.0%}, losses {'equal' if same else 'DIFFER'}, descriptors "
            f"{got.num_descriptors}, memory {got.memory_mib[0]:.0f} to {got.memory_mib[1]:.0f} MiB, "
            f"{len(got.left)} processes left, load {os.getloadavg()[0]:.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
