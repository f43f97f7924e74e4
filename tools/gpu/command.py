"""The command ``gpu``: which parts and cases run, each in a process of its own within what is left of the time."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.environments import Environment
from tools.gpu.interpreter import environ_of
from tools.gpu.results import STORED, TRIAL, Row, append, merged, read, update_page
from tools.running import TIMED_OUT, SetupError, run, say
from tools.workspace import ROOT

PARTS = ("right", "fast", "suite")
CASES = {
    "training": ("step", "fsdp2", "fp8", "llama_8b", "muon", "deepspeed", "transformer_engine"),
    "storage": ("big_model", "saves", "loader"),
}
"""Speed cases in the order in which they run: functions of modules of `tools.gpu`."""
CASE_LIMIT_S = {"cuda": 150, "cpu": 600}
SUITE = ["packages", "tools/tests", "integration-tests", "docs"]
FACTS = """
import json, platform, sys, torch
from accel_state.nvidia import get_driver_version
device, driver = ("CPU", "") if sys.argv[1] == "cpu" else (torch.cuda.get_device_name(0), get_driver_version())
print(json.dumps({"torch": torch.__version__, "python": platform.python_version(), "device": device, "driver": driver}))
"""


def gpu(arguments: argparse.Namespace) -> int:
    """Run tests of devices and measure speed on a GPU; each row goes to a file, and a page is made from it."""
    if arguments.write:
        rows = merged(read(STORED), read(arguments.out))
        STORED.unlink()
        append(STORED, *rows)
        return update_page(is_written=True)
    if arguments.python is None:
        environment = Environment().ensure()
        python, environ = str(environment.python), environment.child_environ()
    elif program := shutil.which(arguments.python):
        python = str(Path(program).absolute())
        environ = environ_of(python)
    else:
        raise SetupError(f"There is no program `{arguments.python}`. Name a Python that has torch.")
    return run_parts(arguments, python, environ)


def run_parts(arguments: argparse.Namespace, python: str, environ: dict[str, str]) -> int:
    """Run the parts, resuming what an earlier call did not reach, and return the exit code."""
    out, end = arguments.out.resolve(), time.monotonic() + arguments.limit_s
    name = name_of_run(arguments)
    if all(row["run"] != name for row in read(out)):
        facts = subprocess.check_output([python, "-c", FACTS, arguments.device], env=environ)
        append(out, {"run": name, **json.loads(facts)})
    num_before, num_threads = (
        len(read(out)),
        min(16, os.cpu_count() or 1) if arguments.device == "cuda" else 1,
    )
    for part in arguments.part or PARTS:
        for about, options in calls_of_pytest(arguments, {"part": part, "run": name}):
            left_s = end - time.monotonic()
            limit_s = min(left_s, CASE_LIMIT_S[arguments.device] if part == "fast" else left_s)
            variables = {**environ, "ACCEL_GPU_FILE": str(out), "ACCEL_GPU_ROWS": json.dumps(about)}
            variables["ACCEL_TEST_DEVICE"] = "" if part == "suite" else arguments.device
            if part == "fast":
                variables |= {"ACCEL_GPU_SIZE": "small" if arguments.small else "full", "HF_HUB_OFFLINE": "1"}
                variables |= {"ACCEL_FP16_ON_CPU": "1", "OMP_NUM_THREADS": str(num_threads)}
            command = [python, "-m", "pytest", "-q", "-p", "tools.gpu.pytest_rows", *options]
            code = run(command, environ=variables, limit_s=limit_s) if left_s > 0 else TIMED_OUT
            what = about.get("case", "some tests")
            if code == TIMED_OUT and limit_s == left_s:
                say(f"not reached: {what}. The same command continues with it.")
            elif code not in (0, 1, 5):  # pytest's: 1 if a test failed, which has a row, 5 if there was none
                append(out, {**about, "row": what, "ok": False, "why": f"ended with exit code {code}"})
    return report(read(out)[num_before:])


def name_of_run(arguments: argparse.Namespace) -> str:
    """Return the name of a run: the day, the commit, with a plus if files differ from it, and whether it is a trial."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+"]
    commit = arguments.commit or subprocess.check_output(git, text=True).strip()
    trial = TRIAL if arguments.device == "cpu" or arguments.small else ""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} {commit}{trial}"


def calls_of_pytest(arguments: argparse.Namespace, about: Row) -> Iterator[tuple[Row, list[str]]]:
    """Yield what the rows of a call have in common, and its words; a speed case has a process of its own."""
    if about["part"] == "fast":
        measured = {row["case"] for row in read(arguments.out) if about.items() <= row.items()}
        for module, names in CASES.items():
            for name in names:
                if name not in measured and name in (arguments.only or names):
                    chosen = [f"tools/gpu/{module}.py::{name}", "-o", f"python_functions={name}"]
                    options = ["--noconftest", "-o", "timeout=0", "-o", "tmp_path_retention_policy=none"]
                    yield {**about, "case": name}, [*options, *chosen]
    elif about["part"] == "right":
        yield about, ["-m", "gpu", "-n", "4", *(arguments.only or ["packages", "integration-tests"])]
    else:
        paths = ["packages/accel-state/tests/devices"] if arguments.small else SUITE
        options = ["-n", str(min(12, os.cpu_count() or 1)), "--dist", "loadfile", "--no-loadscope-reorder"]
        yield about, [*options, *(arguments.only or paths)]


def report(rows: list[Row]) -> int:
    """Print speed and what is wrong; return the exit code."""
    for row in rows:
        if row["part"] == "fast" or row["ok"] is False:
            print(f"{row['row']}: {row.get('figures', '')} {row['why'][:300]}")
    num_wrong = sum(row["ok"] is False for row in rows)
    print(f"{sum(row['ok'] is True for row in rows)} of {len(rows)} rows are right, {num_wrong} are wrong.")
    return int(num_wrong > 0)


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    """Add the arguments of the command by ``add``, the method of a parser."""
    add("only", nargs="*", metavar="NAME", help="speed cases or paths of tests; all of the part if left out")
    add("--part", action="append", choices=PARTS, help="may be given several times (default: all)")
    add("--out", type=Path, default=Path("build/gpu/rows.jsonl"), metavar="FILE",
        help="file for rows; rows of the same day and commit are not run again")  # fmt: skip
    add("--python", metavar="PROGRAM", help="a Python that has torch, instead of .venv's")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--small", action="store_true", help="tiny models: whether it runs, not how fast")
    add("--commit", help="commit of the measured source, if git does not know")
    add("--limit_s", type=float, default=290, help="start nothing after this time (default: 290)")
    add("--write", action="store_true", help="run nothing: write the page of docs/reference from --out")
