"""Runs the parts of ``python tools/dev.py gpu`` within a time limit, and resumes what an earlier call did not reach."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

from tools.gpu.results import TRIAL, VARIABLE, Row, append, read
from tools.setup.running import TIMED_OUT, say
from tools.workspace import ROOT

PARTS = ("right", "fast", "suite")
CASES = {
    "step": ("training", 70),
    "big_model": ("storage", 150),
    "fsdp2": ("training", 90),
    "saves": ("storage", 130),
    "loader": ("storage", 60),
    "fp8": ("training", 130),
    "llama_8b": ("training", 150),
    "muon": ("training", 60),
    "deepspeed": ("training", 60),
    "transformer_engine": ("training", 60),
}
"""Speed cases in the order in which they run: the module that has a function of this name, and seconds on one H200."""
_FACTS = """
import json, platform, sys, torch
from accel_state.nvidia import get_driver_version
is_cuda = sys.argv[1] == "cuda"
device, driver = (torch.cuda.get_device_name(0), get_driver_version()) if is_cuda else ("CPU", "")
print(json.dumps({"torch": torch.__version__, "python": platform.python_version(), "device": device, "driver": driver}))
"""


class Driver:
    """One call of the command: an interpreter that has torch and all packages, its variables, and the arguments."""

    def __init__(self, python: str, environ: dict[str, str], arguments: argparse.Namespace) -> None:
        self.python, self.environ, self.arguments = python, environ, arguments
        self.out, self.is_cuda = arguments.out.resolve(), arguments.device == "cuda"
        trial = "" if self.is_cuda and not arguments.small else TRIAL
        self.run = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {arguments.commit}{trial}"
        self._end = time.monotonic() + arguments.limit_s
        if all(row["run"] != self.run for row in read(self.out)):
            asked = [python, "-c", _FACTS, arguments.device]
            told = subprocess.run(asked, env=environ, stdout=subprocess.PIPE, check=True).stdout
            append(self.out, [{"run": self.run, **json.loads(told)}])

    def run_part(self, part: str) -> int:
        """Run a part, print its rows except tests that passed, and return how many are wrong."""
        before = len(read(self.out))
        for case, options, limit_s in self._cases(part):
            left_s = self._end - time.monotonic()
            if left_s < limit_s / 2:
                say(f"not reached: {case}. The same command goes on with it.")
                continue
            about = {"part": part, "case": case, "run": self.run}
            code = self._ended(options, about, limit_s or left_s)
            if code == TIMED_OUT and not limit_s:
                say(f"not reached: some {case}. The same command goes on with them.")
            elif code not in (0, 1, 5):  # pytest's: 1 if a test failed, which has a row, 5 if there was none
                append(self.out, [{**about, "row": case, "ok": False, "why": f"ended with exit code {code}"}])
        rows = read(self.out)[before:]
        for row in rows:
            if part == "fast" or not row["ok"]:
                state = {True: "ok", False: "WRONG", None: "not here"}[row["ok"]]
                figures = ", ".join(f"{name} {value:g}" for name, value in row.get("figures", {}).items())
                print(f"{state:8} {row['row']}  {figures}  {row['why'][:300]}".rstrip(), flush=True)
        print(f"{part}: {sum(row['ok'] is True for row in rows)} of {len(rows)} rows are right.")
        return sum(row["ok"] is False for row in rows)

    def _cases(self, part: str) -> Iterator[tuple[str, list[str], float]]:
        """Yield names, words for pytest, and time limits, 0 if the case may take what is left."""
        only = self.arguments.only
        if part == "fast":
            plain = ["--noconftest", "-c", os.devnull, f"--rootdir={ROOT}", "--import-mode=importlib"]
            rows = [row for row in read(self.out) if row["run"] == self.run and row.get("part") == part]
            for name, (module, case_s) in CASES.items():
                if (not only or name in only) and all(row["case"] != name for row in rows):
                    chosen = ["-o", f"python_functions={name}", f"tools/gpu/{module}.py::{name}"]
                    yield name, [*plain, *chosen], case_s if self.is_cuda else 4 * case_s
        elif part == "right":
            paths = only or ["packages", "integration-tests"]
            yield "tests", ["-m", "gpu", "-n", "4" if self.is_cuda else "2", *paths], 0
        else:
            paths = ["packages", "tools/tests", "integration-tests", "docs"]
            paths = ["packages/accel-state/tests/devices"] if self.arguments.small else paths
            by_file = ["--dist", "loadfile", "--no-loadscope-reorder"]
            yield "tests", ["-n", str(min(12, os.cpu_count() or 1)), *by_file, *(only or paths)], 0

    def _ended(self, options: list[str], about: Row, limit_s: float) -> int:
        """Run pytest with all that it starts; return its exit code, 124 after the limit."""
        variables = {
            "ACCEL_TEST_DEVICE": "" if about["part"] == "suite" else self.arguments.device,
            VARIABLE: json.dumps([str(self.out), about]),
        }
        if about["part"] == "fast":
            variables["ACCEL_GPU_SIZE"] = "small" if self.arguments.small else "full"
            variables["OMP_NUM_THREADS"] = str(min(16, os.cpu_count() or 1) if self.is_cuda else 1)
            variables |= dict.fromkeys(("ACCEL_FP16_ON_CPU", "HF_HUB_OFFLINE"), "1")
        command = [self.python, "-m", "pytest", "-q", "-p", "tools.gpu.pytest_rows", *options]
        environ = {**self.environ, **variables}
        with subprocess.Popen(command, cwd=ROOT, env=environ, start_new_session=True) as process:
            try:
                return process.wait(max(1.0, limit_s))
            except subprocess.TimeoutExpired:
                return TIMED_OUT
            finally:
                with suppress(ProcessLookupError):  # else what it has started goes on
                    os.killpg(process.pid, signal.SIGKILL)
