"""Ranks that start again as forks of a standby, beside those that start cold."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from accel_launch.launchers.local import free_port
from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.output import log_folder
from accel_launch.processes.supervision import RunEnding, run_processes

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives forks of a standby to the launcher"
)

# Every script reports as `prepare` does, with which the standby starts.
REPORT = """
import os, sys
from accel_state.imports_report import report_imports
attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
is_warm = b"standby_program" in open("/proc/self/cmdline", "rb").read()
report_imports()
"""


def start(
    script: Path,
    *arguments: str,
    num_ranks: int = 1,
    restarts: int = 1,
    environ: dict[str, str] | None = None,
    as_module: bool = False,
) -> RunEnding:
    """Run the ranks as `accel launch --max_restarts` does."""
    program = ("-m", script.stem) if as_module else (f"./{script.name}",)
    plans = [
        ProcessPlan(
            (sys.executable, "-u", *program, *arguments),
            script.parent,
            {"RANK": str(rank), "TORCHELASTIC_RESTART_COUNT": "0", **(environ or {})},
            rank=rank,
        )
        for rank in range(num_ranks)
    ]
    with log_folder(LogSettings()) as logs:
        return run_processes(
            plans, host_environ=dict(os.environ), restarts=Restarts(restarts, logs), grace_period_s=20
        )


def start_by_agent(script: Path, *arguments: str, environ: dict[str, str] | None = None) -> int:
    """Run a rank as `accel launch --num_machines 2 --max_restarts` does: torch's agent starts it."""
    flags = {"rdzv_backend": "accel-static", "rdzv_conf": "rank=0", "max_restarts": 2, "nproc_per_node": 1}
    flags["rdzv_endpoint"] = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-P", "-m", "accel_launch.elastic_agent"]
    command += [*(f"--{name}={value}" for name, value in flags.items()), "--no_python"]
    command += [sys.executable, "-u", f"./{script.name}", *arguments]
    done = subprocess.run(
        command, cwd=script.parent, env=os.environ | (environ or {}), timeout=600, check=False
    )
    return done.returncode


def write(folder: Path, code: str, name: str = "script") -> Path:
    script = folder / f"{name}.py"
    script.write_text(REPORT + code)
    return script


def installed(folder: Path, code: str) -> dict[str, str]:
    """Install a module `thing` in a folder of site-packages, and return the variables that put it on the path."""
    place = folder / "site-packages"
    place.mkdir()
    (place / "thing.py").write_text(code)
    return {"PYTHONPATH": str(place)}


SEES = """
import json, signal
import __main__
found = {
    "environ": dict(os.environ), "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "cwd": os.getcwd(),
    "main": {name: str(getattr(__main__, name)) for name in sorted(vars(__main__)) if name.startswith("__")},
    "is_main": __main__.__dict__ is globals(), "name": __name__,
    "descriptors": {name: os.readlink(f"/proc/self/fd/{name}") for name in sorted(os.listdir("/proc/self/fd"))
                    if os.path.exists(f"/proc/self/fd/{name}")},
    "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "umask": os.umask(0o22),
    "group": os.getpgrp() == os.getpid() or os.getpgrp(), "session": os.getsid(0) == os.getpid() or os.getsid(0),
    "parent": os.getppid(),
    "handlers": {int(each): str(signal.getsignal(each)) for each in signal.valid_signals()},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "streams": [(stream.name, stream.isatty(), stream.encoding, stream.errors, stream.line_buffering,
                 stream.write_through) for stream in (sys.stdout, sys.stderr)],
    "flags": str(sys.flags), "threads": len(os.listdir("/proc/self/task")), "warm": is_warm,
}
open(f"{sys.argv[1]}/{attempt}", "w").write(json.dumps(found))
"""


# They differ between attempts.
OF_ATTEMPTS = ("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE", "MASTER_PORT")


def assert_all_see_the_same(folder: Path, num_attempts: int) -> None:
    first, *others = (json.loads((folder / str(attempt)).read_text()) for attempt in range(num_attempts))
    assert not first.pop("warm")
    assert [each.pop("warm") for each in others] == [True] * len(others)
    for seen in (first, *others):
        for name in OF_ATTEMPTS:
            seen["environ"].pop(name, None)
        # Pipes have other numbers, loaders other addresses.
        seen["descriptors"] = {name: re.sub(r"\d+", "", file) for name, file in seen["descriptors"].items()}
        seen["main"] = {name: re.sub("0x[0-9a-f]+", "", text) for name, text in seen["main"].items()}
    assert others == [first] * len(others)


@pytest.mark.parametrize("as_module", [False, True])
def test_a_rank_sees_the_same_whether_it_is_forked_or_started(tmp_path, as_module):
    script = write(tmp_path, SEES + "sys.exit(3 - attempt)")
    ending = start(script, str(tmp_path), "two words", as_module=as_module)
    assert [child.return_code for child in ending.children] == [2]
    assert_all_see_the_same(tmp_path, 2)


def test_a_rank_of_torchs_agent_sees_the_same_whether_it_is_forked_or_started(tmp_path):
    assert start_by_agent(write(tmp_path, SEES + "sys.exit(2 - attempt)"), str(tmp_path), "two words") == 0
    assert_all_see_the_same(tmp_path, 3)


def test_what_cannot_be_forked_by_torchs_agent_starts_cold_and_one_line_says_why(tmp_path, capfd):
    module = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    script = tmp_path / "script.py"
    script.write_text(f"import thing\n{REPORT}\nprint(is_warm, flush=True)\nsys.exit(2 - attempt)")
    assert start_by_agent(script, environ=installed(tmp_path, module)) == 0
    told = capfd.readouterr()
    assert told.out.split() == ["False"] * 3
    assert [line for line in told.err.splitlines() if "without the standby" in line] == [
        "The ranks start without the standby: `thing` starts a thread when it is imported."
    ]


@pytest.mark.parametrize(
    ("code", "return_code"),
    [
        ("raise ValueError('no luck')", 1),
        ("sys.exit('a message')", 1),
        ("os._exit(7)", 7),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("def inner():\n    raise OSError(2, 'x')\ninner()", 1),
        ("import threading\nthreading.Thread(target=print, args=('late',)).start()\nsys.exit(5)", 5),
    ],
)
def test_a_rank_ends_the_same_with_the_same_output(tmp_path, capfd, code, return_code):
    begin = "import atexit\natexit.register(print, 'at exit')\nprint('warm', is_warm, flush=True)\n"
    ending = start(write(tmp_path, begin + code))
    assert [child.return_code for child in ending.children] == [return_code]
    told = capfd.readouterr()
    cold, warm = told.out.split("warm True\n")
    assert "warm False\n" + warm == cold
    cold, warm = re.split(r"Rank 0 .*\n", told.err)
    assert warm == cold


def test_the_standby_imports_what_is_installed_and_no_file_of_the_user(tmp_path, capfd):
    environ = installed(tmp_path, "import os\nimports = [os.getpid()]\n")
    (tmp_path / "mine.py").write_text("print('imported', flush=True)\nopen('imports', 'a').write('x')\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.py").write_text("open('imports', 'a').write('y')\n")
    environ["PYTHONPATH"] += f":{elsewhere}"
    code = (
        "import mine, other, thing\nprint(is_warm, thing.imports == [os.getpid()], flush=True)\n"
        "import accel_state.imports_report as imports_report; imports_report.report_imports()\nsys.exit(1)\n"
    )
    # The report is made once the modules are there.
    script = tmp_path / "script.py"
    script.write_text("import mine, other, thing\n" + REPORT + code)
    start(script, environ=environ)
    lines = [line for line in capfd.readouterr().out.splitlines() if line != "imported"]
    assert lines == ["False True", "True False"]
    assert (tmp_path / "imports").read_text() == "xyxy"


# A group that needs no thread and no connection.
FAKE_GROUP = """
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (
            "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
            "starts a thread",
        ),
        ("file = open('/dev/full', 'w')", "opens `/dev/full`"),
        ("import os\nrank = os.environ.get('RANK', '-1')", "reads `RANK`"),
        (
            "import os\nattempt = os.environ['TORCHELASTIC_RESTART_COUNT']",
            "reads `TORCHELASTIC_RESTART_COUNT`",
        ),
        (
            "import __main__\nif not hasattr(__main__, 'REPORTS'): raise ImportError('only there')",
            "only there",
        ),
        ("import os, __main__\nif not hasattr(__main__, 'REPORTS'): os._exit(1)", "it has ended"),
        ("import socket\nlistener = socket.create_server(('127.0.0.1', 0))", "opens `socket:["),
        (
            "import os\nhome = os.environ.get('SET_BY_SCRIPT')",
            "reads `SET_BY_SCRIPT`, which the script changes",
        ),
        ("import mine", "`mine` is `"),
        (FAKE_GROUP, "opened a process group"),
    ],
)
def test_what_cannot_be_forked_starts_cold_and_one_line_says_why(tmp_path, capfd, module, reason):
    environ = installed(tmp_path, module)
    for folder in (tmp_path, tmp_path / "site-packages"):
        (folder / "mine.py").touch()
    script = tmp_path / "script.py"
    script.write_text(
        "import os\nos.environ['SET_BY_SCRIPT'] = 'x'\nREPORTS = True\n"
        f"import thing\n{REPORT}\nprint(is_warm, flush=True)\nsys.exit(1)"
    )
    start(script, num_ranks=2, restarts=2, environ=environ)
    told = capfd.readouterr()
    # Two ranks write to one stream, so ends of lines may stand apart from them.
    assert "True" not in told.out
    assert "False" in told.out
    lines = [line for line in told.err.splitlines() if "standby" in line]
    assert lines[0].startswith("The ranks start without the standby: ")
    assert reason in lines[0]
    if reason != "it has ended":
        assert len(lines) == 1


def test_threads_of_openblas_are_accepted_and_work_after_the_fork(tmp_path, capfd):
    code = (
        "matrix = numpy.ones((600, 600))\nprint(is_warm, (matrix @ matrix)[5, 5], flush=True)\n"
        "open(f'{sys.argv[1]}/{attempt}', 'w').write(str(numpy.random.rand()))\nsys.exit(1)"
    )
    script = tmp_path / "script.py"
    script.write_text("import numpy\n" + REPORT + code)
    start(script, str(tmp_path), restarts=2)
    assert capfd.readouterr().out.splitlines() == ["False 600.0", "True 600.0", "True 600.0"]
    assert len({(tmp_path / str(attempt)).read_text() for attempt in range(3)}) == 3  # seeded anew


@pytest.mark.engine("libraries")
def test_threads_of_arrow_are_accepted_and_work_after_the_fork(tmp_path, capfd):
    code = "print(is_warm, pyarrow.compute.sum(pyarrow.array(range(10**6))), flush=True)\nsys.exit(1)"
    script = tmp_path / "script.py"
    script.write_text("import datasets, pyarrow.compute\n" + REPORT + code)
    start(script, restarts=2)
    assert capfd.readouterr().out.splitlines() == [
        "False 499999500000",
        "True 499999500000",
        "True 499999500000",
    ]


def test_what_installed_modules_set_in_the_environment_is_set_after_the_fork(tmp_path, capfd):
    module = "import os\nos.environ.setdefault('SET_BY_IT', 'x')\nos.environ.pop('DELETED_BY_IT')"
    script = tmp_path / "script.py"
    told = (
        "print(is_warm, os.environ['SET_BY_IT'], os.environ['SET_AT_START'], 'DELETED_BY_IT' in os.environ)\n"
        "sys.exit(1)"
    )
    script.write_text(f"import thing\n{REPORT}{told}")
    environ = installed(tmp_path, module) | {"DELETED_BY_IT": "x"}
    at_start = "import os\nos.environ['SET_AT_START'] = 'y'"
    (tmp_path / "site-packages" / "sitecustomize.py").write_text(at_start)
    start(script, environ=environ)
    assert capfd.readouterr().out.splitlines() == ["False x y False", "True x y False"]


def test_a_variable_that_loaded_libraries_have_read_is_not_changed_for_forks(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(f"import os\nos.environ['OMP_NUM_THREADS'] = '3'\n{REPORT}print(is_warm)\nsys.exit(1)")
    start(script, environ={"OMP_NUM_THREADS": "1"})
    told = capfd.readouterr()
    assert told.out.split() == ["False", "False"]
    assert "the script changes `OMP_NUM_THREADS`" in told.err


def test_ranks_that_run_when_another_fails_get_the_signal(tmp_path, capfd):
    code = (
        "import signal, time\n"
        "if os.environ['RANK'] == '0':\n    signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "    open(f'ready{attempt}', 'w').close()\n    time.sleep(60)\n"
        "while not os.path.exists(f'ready{attempt}'):\n    time.sleep(0.01)\nsys.exit(4)"
    )
    ending = start(write(tmp_path, code), num_ranks=2)
    assert [child.return_code for child in ending.children] == [9, 4]
    assert ending.children[0].was_ended


def test_shared_memory_of_a_rank_that_is_killed_is_deleted(tmp_path):
    code = (
        "import signal\nfrom multiprocessing import get_context, shared_memory\n"
        "block = shared_memory.SharedMemory(create=True, size=8)\n"
        "lock = get_context('spawn').Lock()\n"
        "open(sys.argv[1], 'a').write(f'{block.name} ')\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    ending = start(write(tmp_path, code), str(tmp_path / "names"))
    assert [child.return_code for child in ending.children] == [-signal.SIGKILL]
    names = (tmp_path / "names").read_text().split()
    assert len(names) == 2
    assert not [name for name in names if Path("/dev/shm", name).exists()]


def test_twenty_restarts_leak_no_descriptor(tmp_path):
    code = (
        "import psutil\nlauncher = psutil.Process().parent()\n"
        "standbys = [each for each in launcher.children() if 'standby_program' in ' '.join(each.cmdline())\n"
        "            and each.pid != os.getpid()]\n"
        "print(attempt, launcher.num_fds(), *(each.num_fds() for each in standbys), file=open(sys.argv[1], 'a'))\n"
        "sys.exit(1)"
    )
    start(write(tmp_path, code), str(tmp_path / "counts"), restarts=20)
    lines = [line.split()[1:] for line in (tmp_path / "counts").read_text().splitlines()]
    assert len(lines) == 21
    assert len(lines[2]) == 2
    assert lines[20] == lines[2]


def test_a_standby_that_is_killed_costs_one_cold_start(tmp_path, capfd):
    code = (
        "import psutil\nprint(is_warm, flush=True)\n"
        "if is_warm and attempt == 1:\n"
        "    for each in psutil.Process().parent().children():\n"
        "        if each.pid != os.getpid():\n            each.kill()\n"
        "sys.exit(1)"
    )
    start(write(tmp_path, code), restarts=3)
    told = capfd.readouterr()
    assert told.out.split() == ["False", "True", "False", "True"]
    assert [line for line in told.err.splitlines() if "standby" in line] == [
        "The ranks start without the standby: it has ended."
    ]


LAUNCHER = """
import os, sys
from pathlib import Path
from accel_launch.launchers.local import free_port
from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.output import log_folder
from accel_launch.processes.supervision import run_processes
plan = ProcessPlan((sys.executable, "-u", sys.argv[1]), Path.cwd(), rank=0)
with log_folder(LogSettings()) as logs:
    run_processes([plan], host_environ=dict(os.environ), restarts=Restarts(1, logs))
"""


@pytest.mark.parametrize("whom", ["launcher", "supervisor"])
def test_nothing_is_left_when_the_launcher_is_killed(tmp_path, whom):
    code = "import time\nif attempt == 0:\n    sys.exit(1)\nprint(os.getppid(), flush=True)\ntime.sleep(120)"
    command = [sys.executable, "-c", LAUNCHER, str(write(tmp_path, code))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        supervisor = int(launcher.stdout.readline())
        family = psutil.Process(supervisor).children(recursive=True)
        assert len(family) == 2  # the rank and the standby
        os.kill(launcher.pid if whom == "launcher" else supervisor, signal.SIGKILL)
        _, alive = psutil.wait_procs(family, timeout=30)
        assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_a_run_that_succeeds_leaves_no_standby(tmp_path):
    code = (
        "import psutil, time\nif attempt == 0:\n    sys.exit(1)\n"
        "print(*(each.pid for each in psutil.Process().parent().children()), file=open(sys.argv[1], 'w'))"
    )
    start(write(tmp_path, code), str(tmp_path / "family"))
    pids = [int(pid) for pid in (tmp_path / "family").read_text().split()]
    assert len(pids) == 2
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not list(tmp_path.glob("*.json"))
