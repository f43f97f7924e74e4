"""Runs the parts of ``python tools/dev.py gpu`` within a time limit, and resumes what an earlier call did not reach."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tools.gpu import results
from tools.gpu.case import CASES
from tools.gpu.results import TRIAL, Row
from tools.setup.running import TIMED_OUT, say
from tools.workspace import ROOT, read_packages

PARTS = ("right", "fast", "suite")
_FACTS = """
import json, platform, sys, torch
from accel_state.nvidia import get_driver_version
is_cuda = sys.argv[1] == "cuda"
device, driver = (torch.cuda.get_device_name(0), get_driver_version()) if is_cuda else ("CPU", "")
print(json.dumps({"torch": torch.__version__, "python": platform.python_version(), "device": device, "driver": driver}))
"""


@dataclass
class Driver:
    """One call of the command.

    Args:
        python: The interpreter that has torch and all packages.
        environ: The variables of what it runs.
        out: The file of rows.
        device: ``cuda`` or ``cpu``.
        is_small: Use tiny models, and of the suite one package.
        commit: What is measured.
        limit_s: After this time nothing is begun any more.
        only: Names of speed cases, paths of tests; all if empty.
    """

    python: str
    environ: dict[str, str]
    out: Path
    device: str
    is_small: bool
    commit: str
    limit_s: float
    only: list[str] = field(default_factory=list)
    _begun: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        trial = TRIAL if self.device == "cpu" or self.is_small else ""
        self.run = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {self.commit}{trial}"
        self._rows = [row for row in results.read(self.out) if row["run"] == self.run]
        if not self._rows:
            asked = [self.python, "-c", _FACTS, self.device]
            told = subprocess.run(asked, env=self.environ, stdout=subprocess.PIPE, check=True).stdout
            results.append(self.out, [{"run": self.run, **json.loads(told)}])

    def run_part(self, part: str) -> int:
        """Run a part and return how many rows are wrong."""
        num_wrong = 0
        for row in {"right": self._right, "fast": self._fast, "suite": self._suite}[part]():
            num_wrong += row["ok"] is False
            state = {True: "ok", False: "WRONG", None: "not here"}[row["ok"]]
            figures = ", ".join(f"{name} {value:g}" for name, value in row.get("figures", {}).items())
            print(f"{state:8} {row['row']}  {figures}  {row['why'][:300]}".rstrip(), flush=True)
        return num_wrong

    def _fast(self) -> Iterator[Row]:
        flags = ["--device", self.device, *(["--small"] if self.is_small else [])]
        for name, (_, case_s) in CASES.items():
            if (not self.only or name in self.only) and self._is_next("fast", name, needed_s=case_s / 2):
                limit_s = case_s if self.device == "cuda" else 4 * case_s
                code, text = self._ended(["-m", "tools.gpu.case", name, *flags], limit_s)
                rows = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("ROW ")]
                if code != 0:
                    rows.append({"row": name, "ok": False, "why": f"ended with {code}: {_end_of(text)}"})
                yield from self._put("fast", name, rows)

    def _right(self) -> Iterator[Row]:
        done = [row["row"] for row in self._rows if row.get("part") == "right"]
        code, text = self._ended(
            ["-m", "pytest", "-q", "-n", "4" if self.device == "cuda" else "2", "-m", "gpu",
             "-p", "tools.gpu.pytest_rows", *(self.only or ["packages", "integration-tests"])],
            self._left_s(), ACCEL_TEST_DEVICE=self.device,
            ACCEL_GPU_ROWS=json.dumps([str(self.out), self.run, done]),
        )  # fmt: skip
        ours = [row for row in results.read(self.out) if (row["run"], row.get("part")) == (self.run, "right")]
        yield from (row for row in ours if row["row"] not in done)
        if code == TIMED_OUT:
            say("not all tests were reached. The same command goes on with them.")
        elif code not in (0, 1, 5):
            why = f"{code}: {_end_of(text)}"
            yield from self._put("right", "", [{"row": "the tests", "ok": False, "why": why}])

    def _suite(self) -> Iterator[Row]:
        paths = [
            *(f"packages/{name}/tests" for name in read_packages()),
            "tools/tests",
            "integration-tests",
            "docs",
        ]
        if self.is_small:
            paths = ["packages/accel-state/tests/devices"]
        parallel = ["-n", str(min(12, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
        for path in self.only or paths:
            if not self._is_next("suite", path, needed_s=20):
                continue
            command = ["-m", "pytest", "-q", *parallel, path]
            code, text = self._ended(command, self._left_s(), ACCEL_TEST_DEVICE="")
            if code == TIMED_OUT:
                say(f"{path} takes longer than was left of `--limit_s`. The same command begins with it.")
                continue
            failed = [line[:200] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
            why = "" if code in (0, 5) else "; ".join([*failed[:20], f"{code}: {_end_of(text)}"])
            row = {"row": path, "ok": not why, "why": why, "note": _end_of(text)}
            yield from self._put("suite", path, [row])

    def _is_next(self, part: str, case: str, *, needed_s: float) -> bool:
        """Whether a case has no rows yet and there is time for it."""
        if any(row.get("part") == part and row.get("case") == case for row in self._rows):
            return False
        if is_late := self._left_s() < needed_s:
            say(f"not reached: {case}. The same command goes on with it.")
        return not is_late

    def _put(self, part: str, case: str, rows: list[Row]) -> list[Row]:
        complete = [{"part": part, "case": case, "run": self.run, **row} for row in rows]
        results.append(self.out, complete)
        return complete

    def _left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self._begun)

    def _ended(self, arguments: list[str], limit_s: float, **variables: str) -> tuple[int, str]:
        """Run Python; return its exit code, 124 after the limit, and what it wrote, which is kept in a log."""
        log = self.out.with_suffix(f".{len(list(self.out.parent.glob('*.txt')))}.txt")
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [self.python, *arguments], cwd=ROOT, env={**self.environ, **variables}, stdout=stream,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            try:
                code = process.wait(max(1.0, limit_s))
            except subprocess.TimeoutExpired:
                code = TIMED_OUT
            finally:
                with suppress(ProcessLookupError):  # else what it has started goes on
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return code, log.read_text(encoding="utf-8", errors="replace")


def _end_of(text: str) -> str:
    return " | ".join(text.strip().splitlines()[-3:])[-600:].strip("= ")
