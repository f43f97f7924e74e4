"""Runs the parts of ``python tools/dev.py gpu`` within a time limit, and resumes what an earlier call did not reach."""

from __future__ import annotations

import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.gpu import results
from tools.gpu.case import CASES
from tools.gpu.results import Row
from tools.setup.running import say
from tools.workspace import ROOT, read_packages

PARTS = ("right", "fast", "suite")
_FACTS = """
import json, platform, subprocess, sys, torch
facts = {"torch": torch.__version__, "python": platform.python_version(), "device": "CPU", "driver": ""}
if sys.argv[1] == "cuda":
    facts["device"] = torch.cuda.get_device_name(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        facts["driver"] = subprocess.run(query, capture_output=True, text=True).stdout.split()[0]
    except (OSError, IndexError):
        pass
print(json.dumps(facts))
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
        done = subprocess.run(
            [self.python, "-c", _FACTS, self.device],
            env=self.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        self.run = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {self.commit}"
        self._rows = [row for row in results.read(self.out) if row["run"] == self.run]
        if not any("device" in row for row in self._rows):
            results.append(self.out, [{"run": self.run, **json.loads(done.stdout)}])

    def run_part(self, part: str) -> int:
        """Run a part and return how many rows are wrong or were not reached."""
        steps = {"right": self._right, "fast": self._fast, "suite": self._suite}[part]
        num_wrong = 0
        for rows in steps():
            for row in rows:
                num_wrong += row["ok"] is False
                state = {True: "ok", False: "WRONG", None: "not here"}[row["ok"]]
                figures = ", ".join(f"{name} {value:g}" for name, value in row.get("figures", {}).items())
                print(f"{state:8} {row['row']}  {figures}  {row['why'][:300]}".rstrip(), flush=True)
        return num_wrong

    def _fast(self) -> Iterator[list[Row]]:
        for name, (_, case_s) in CASES.items():
            if (self.only and name not in self.only) or self._has("fast", name):
                continue
            limit_s = case_s if self.device == "cuda" else 4 * case_s
            if self._left_s() < case_s / 2:
                say(f"not reached: {name}. The same command goes on with it.")
                continue
            words = [
                "-m",
                "tools.gpu.case",
                name,
                "--device",
                self.device,
                *(["--small"] if self.is_small else []),
            ]
            code, text = self._ended([self.python, *words], min(limit_s, max(self._left_s(), case_s / 2)))
            rows = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("ROW ")]
            if code != 0:
                last = " | ".join(text.strip().splitlines()[-3:])[-600:]
                rows.append({"row": name, "ok": False, "why": f"ended with {code}: {last}"})
            yield self._put("fast", name, rows)

    def _right(self) -> Iterator[list[Row]]:
        done = [row["row"] for row in self._rows if row.get("part") == "right"]
        environ = {
            "ACCEL_TEST_DEVICE": self.device,
            "ACCEL_GPU_ROWS": str(self.out.resolve()),
            "ACCEL_GPU_RUN": self.run,
        }
        environ["ACCEL_GPU_DONE"] = json.dumps(done)
        words = [
            "-m",
            "gpu",
            "-p",
            "tools.gpu.pytest_rows",
            "-q",
            *_in_parallel(4 if self.device == "cuda" else 2),
        ]
        paths = self.only or ["packages", "integration-tests"]
        code, text = self._ended(
            [self.python, "-m", "pytest", *words, *paths], self._left_s(), {**self.environ, **environ}
        )
        print("\n".join(text.splitlines()[-60:]), flush=True)
        if code not in (0, 1, 5):
            last = " | ".join(text.strip().splitlines()[-3:])[-600:]
            yield self._put(
                "right", "pytest", [{"row": "the tests as a whole", "ok": False, "why": f"{code}: {last}"}]
            )
        new = {row["row"] for row in self._rows}
        yield [row for row in results.read(self.out) if row.get("part") == "right" and row["row"] not in new]

    def _suite(self) -> Iterator[list[Row]]:
        paths = [f"packages/{name}/tests" for name in read_packages()] + [
            "tools/tests",
            "integration-tests",
            "docs",
        ]
        for path in self.only or paths[-4:-3] if self.is_small else self.only or paths:
            if self._has("suite", path):
                continue
            if self._left_s() < 20:
                say(f"not reached: {path}. The same command goes on with it.")
                continue
            environ = {**self.environ, "ACCEL_TEST_DEVICE": ""}
            words = [self.python, "-m", "pytest", path, "-q", *_in_parallel(min(12, os.cpu_count() or 1))]
            code, text = self._ended(words, self._left_s(), environ)
            failed = [
                line.split(" - ")[0] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))
            ]
            last = text.strip().splitlines()[-1] if text.strip() else ""
            row: Row = {
                "row": path,
                "ok": code in (0, 5),
                "why": "; ".join(failed)[:2000],
                "note": last.strip("= "),
            }
            if code not in (0, 1, 5):
                row["why"] = f"ended with {code}. {row['why']}"
            yield self._put("suite", path, [row])

    def _has(self, part: str, case: str) -> bool:
        return any(row.get("part") == part and row.get("case") == case for row in self._rows)

    def _put(self, part: str, case: str, rows: list[Row]) -> list[Row]:
        small = {"is_small": True} if self.is_small else {}
        complete = [{"part": part, "case": case, "run": self.run, **small, **row} for row in rows]
        results.append(self.out, complete)
        return complete

    def _left_s(self) -> float:
        return self.limit_s - (time.monotonic() - self._begun)

    def _ended(
        self, command: list[str], limit_s: float, environ: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Run a program; return its exit code, 124 after the limit, and what it wrote, which is kept in a log."""
        log = self.out.with_suffix(f".{len(list(self.out.parent.glob('*.txt')))}.txt")
        with log.open("wb") as stream, subprocess.Popen(
            command, cwd=ROOT, env=environ or self.environ, stdout=stream, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            try:
                code = process.wait(limit_s)
            except BaseException as error:
                os.killpg(process.pid, signal.SIGKILL)
                if not isinstance(error, subprocess.TimeoutExpired):
                    raise
                code = 124
        return code, log.read_text(encoding="utf-8", errors="replace")


def _in_parallel(num: int) -> list[str]:
    return ["-n", str(num), "--dist", "loadfile", "--no-loadscope-reorder"]


def commit_of_checkout() -> str:
    """Return the short name of the commit, with a plus if files differ from it; ``unknown`` without git."""
    git = ["git", "-C", str(ROOT)]
    try:
        name = subprocess.run(
            [*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        print("The commit is unknown: name it with `--commit`.", file=sys.stderr)
        return "unknown"
    return name + ("+" if changed else "")
