"""The launchers of functions, one after another in a process like a notebook's kernel, which they fork."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from accel_launch.notebook import notebook_launcher
from accel_launch.notebook.ranks import _WholeLines
from accel_state.errors import ConfigError
from tools.harness.scripts import run_script

pytestmark = pytest.mark.slow

SESSION = """
import asyncio, contextlib, io, json, os, signal, socket, sys, threading, time
from pathlib import Path
import accel_launch.notebook.launching
from accel_launch.machine import Accelerators
from accel_launch.notebook import debug_launcher, notebook_launcher
assert "torch" not in sys.modules
folder = Path(sys.argv[1])
seen = {}

def work(name, *args):
    from accel_state import PartialState
    state = PartialState()
    told = [state.process_index, state.num_processes, state.local_process_index, str(state.device), *args]
    told += [os.environ.get("ACCELERATE_MIXED_PRECISION"), "forked" if state.fork_launched else "in place"]
    (folder / f"{name}-{state.process_index}").write_text(" ".join(map(str, told)))
    state.destroy_process_group()

def fail(rank_that_fails):
    if os.environ["RANK"] == rank_that_fails:
        raise ValueError("told to")
    time.sleep(60)

def end_by_a_signal():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)

def fail_once():
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    (folder / f"once-{attempt}-{os.environ['RANK']}").write_text("")
    while attempt == "0" and len(list(folder.glob("once-0-*"))) < 2:
        time.sleep(0.01)  # the first that fails ends the other
    if attempt == "0":
        raise ValueError("once")

def write(text):
    print(text, "to stdout")
    print(text, "to stderr", file=sys.stderr)

def interrupt(kernel, times):
    [signal.signal(signum, signal.SIG_IGN) for signum in (signal.SIGINT, signal.SIGTERM)] if times > 1 else None
    for _ in range(times if os.environ["RANK"] == "0" else 0):
        os.kill(kernel, signal.SIGINT)
        time.sleep(0.5)
    time.sleep(60)

def stay(name):
    (folder / f"{name}-{os.getpid()}").write_text("")
    time.sleep(60)

def loop_of_its_own(name):
    asyncio.run(asyncio.sleep(0))
    work(name)

async def launch_in_a_loop():
    attempt("loop", notebook_launcher, loop_of_its_own, ("loop",), **two)
    process = await asyncio.create_subprocess_exec("true")  # it hears of its end by a signal, or a thread
    seen["loop goes on"] = await process.wait()

def meet(name, port):
    told = {key: os.environ[key] for key in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT")}
    if told["TORCHELASTIC_RESTART_COUNT"] == "0":
        raise ValueError("once")
    work(f"{name}-{'-'.join(told.values())}")

def in_a_fork(launch):
    pid = os.fork()
    if pid == 0:
        try:
            launch()
            os._exit(0)
        finally:
            os._exit(1)  # the session goes on in its own process alone
    return pid

def ends_with(name, signum):
    kernel = in_a_fork(lambda: notebook_launcher(stay, (name,), **two))
    while len(ranks := list(folder.glob(f"{name}-*"))) < 2:
        assert os.waitpid(kernel, os.WNOHANG) == (0, 0), f"`{name}` was not launched"
        time.sleep(0.02)
    os.kill(kernel, signum)
    seen[name] = os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1])
    left = [int(rank.name.rpartition("-")[2]) for rank in ranks]
    for _ in range(250):
        left = [pid for pid in left if Path(f"/proc/{pid}").exists()]
        time.sleep(0.02 if left else 0)
    seen[f"left of {name}"] = left

def attempt(name, launcher, *args, **given):
    try:
        launcher(*args, **given)
        seen[name] = "fine"
    except (Exception, KeyboardInterrupt) as error:
        seen[name] = f"{type(error).__name__}: {error}"
        seen[f"bases of {name}"] = [base.__name__ for base in type(error).__mro__]

two = {"num_processes": 2, "use_port": 0}
handlers = [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]
attempt("two", notebook_launcher, work, ("two", 7), mixed_precision="bf16", **two)
import torch  # what is forked from here on need not import it again
attempt("debug", debug_launcher, work, ("debug", "x"))
attempt("debug fails", debug_launcher, fail, ("1",))
attempt("fails", notebook_launcher, fail, ("1",), **two)
attempt("is killed", notebook_launcher, end_by_a_signal, **two)
attempt("restarts", notebook_launcher, fail_once, max_restarts=1, **two)
template = "[${role_name} $local_rank of ${rank}] "
with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        attempt("prefix", notebook_launcher, write, ("text",), log_line_prefix_template=template, **two)
seen["written"] = [sorted((folder / name).read_text().splitlines()) for name in ("stdout", "stderr")]
thread = threading.Thread(target=attempt, args=("thread", notebook_launcher, work, ("thread",)), kwargs=two)
thread.start()
thread.join()
asyncio.run(launch_in_a_loop())
began = time.monotonic()
attempt("interrupted", notebook_launcher, interrupt, (os.getpid(), 1), **two)
attempt("interrupted twice", notebook_launcher, interrupt, (os.getpid(), 60), **two)
seen["seconds"] = time.monotonic() - began
ends_with("killed", signal.SIGKILL)
ends_with("terminated", signal.SIGTERM)
with socket.create_server(("", 0)) as server:
    meeting = {"num_nodes": 2, "max_restarts": 1, "use_port": server.getsockname()[1]}
kernel = in_a_fork(lambda: notebook_launcher(meet, ("met", 1), num_processes=2, node_rank=1, **meeting))
attempt("machines", notebook_launcher, meet, ("met", 0), num_processes=1, node_rank=0, **meeting)
seen["other machine"] = os.waitstatus_to_exitcode(os.waitpid(kernel, 0)[1])
attempt("no such way to meet", notebook_launcher, meet, ("met", 0), rdzv_backend="mail", **two)
with socket.create_server(("", 0)) as server:
    port = server.getsockname()[1]
    attempt("port is taken", notebook_launcher, work, num_processes=2, use_port=port)
seen["handlers"] = handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]

accel_launch.notebook.launching.find_accelerators = lambda environ: Accelerators("nvidia", ("0", "1"))
os.environ["ACCELERATE_DEBUG_MODE"] = "yes"  # this torch cannot use a GPU, in a fork or otherwise
attempt("a fork cannot use the GPU", notebook_launcher, work, **two)
torch.cuda.is_initialized = lambda: True
del os.environ["ACCELERATE_DEBUG_MODE"]
attempt("something used the GPU", notebook_launcher, work, **two)
attempt("the debug launcher uses no GPU", debug_launcher, work, ("cpu",))
accel_launch.notebook.launching.find_accelerators = lambda environ: Accelerators()

attempt("one", notebook_launcher, work, ("one", "a"))
seen["left behind"] = [name for name in os.environ if name.startswith(("ACCELERATE_", "TORCH_DISABLE"))]
attempt("an accelerator was built", notebook_launcher, work, **two)
(folder / "seen.json").write_text(json.dumps(seen))
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each launch, by name, and the text that each rank has left in a file."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "session.py").write_text(SESSION)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    finished = subprocess.run(
        [sys.executable, str(folder / "session.py"), str(folder)],
        env=variables | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    told = {path.name: path.read_text() for path in sorted(folder.glob("*-*"))}
    return json.loads((folder / "seen.json").read_text()) | {"told": told, "stderr": finished.stderr}


def told_by(session: dict[str, Any], name: str) -> dict[str, str]:
    return {key: text for key, text in session["told"].items() if key.startswith(f"{name}-")}


def test_a_notebook_starts_two_processes_on_the_cpu(session):
    assert session["two"] == "fine"
    assert told_by(session, "two") == {"two-0": "0 2 0 cpu 7 bf16 forked", "two-1": "1 2 1 cpu 7 bf16 forked"}


def test_one_process_runs_in_place_and_leaves_the_environment_as_it_was(session):
    assert session["one"] == "fine"
    assert told_by(session, "one") == {"one-0": "0 1 0 cpu a no in place"}
    assert session["left behind"] == []


def test_the_debug_launcher_starts_two_processes(session):
    assert session["debug"] == "fine"
    assert told_by(session, "debug") == {
        "debug-0": "0 2 0 cpu x None forked",
        "debug-1": "1 2 1 cpu x None forked",
    }


def test_an_exception_in_a_process_is_raised_here(session):
    assert "ProcessRaisedException" in session["bases of debug fails"]
    assert session["debug fails"].startswith("RanksFailedError: Rank 1 failed first: ValueError: told to (")
    assert session["debug fails"].rstrip().endswith("ValueError: told to")


def test_the_first_cause_is_reported_without_a_page_of_torch(session):
    first, *lines = session["fails"].splitlines()
    assert first.startswith("RanksFailedError: Rank 1 failed first: ValueError: told to (")
    assert first.endswith("session.py:21 in fail).")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: told to"
    assert {"LaunchError", "ChildFailedError"} < set(session["bases of fails"])
    assert session["is killed"] == "RanksFailedError: Rank 1 failed first: it was killed by SIGKILL."
    assert "torch.distributed.elastic" not in session["stderr"]


def test_processes_start_again_as_often_as_requested(session):
    assert session["restarts"] == "fine"
    assert sorted(told_by(session, "once")) == ["once-0-0", "once-0-1", "once-1-0", "once-1-1"]


def test_each_line_of_a_process_has_the_prefix(session):
    assert session["prefix"] == "fine"
    assert session["written"] == [
        [f"[default {rank} of {rank}] text to {stream}" for rank in range(2)]
        for stream in ("stdout", "stderr")
    ]


def test_a_line_is_written_at_once_and_its_beginning_if_it_is_flushed():
    written: list[str] = []
    stream = _WholeLines(types.SimpleNamespace(write=written.append, flush=lambda: None), "> ")
    print("one", 2, file=stream)
    print("half", end="", file=stream)
    assert written == ["> one 2\n"]
    stream.flush()
    print(" of a line\n10%\r20%\r", end="", file=stream)
    assert written[1:] == ["> half", " of a line\n> 10%\r> 20%\r"]


def test_another_thread_than_the_main_one_may_launch(session):
    assert session["thread"] == "fine"
    assert len(told_by(session, "thread")) == 2


def test_the_loop_that_a_launch_is_called_from_continues(session):
    assert session["loop"] == "fine"
    assert session["loop goes on"] == 0


def test_an_interrupt_ends_the_processes_and_a_second_one_kills_them(session):
    assert session["interrupted"].startswith("KeyboardInterrupt")
    assert session["interrupted twice"].startswith("KeyboardInterrupt")
    assert session["seconds"] < 20  # of a grace period of 30


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills processes with their parent")
def test_processes_end_with_the_kernel(session):
    assert [session["killed"], session["left of killed"]] == [-signal.SIGKILL, []]
    assert [session["terminated"], session["left of terminated"]] == [-signal.SIGTERM, []]


def test_machines_with_different_numbers_of_processes_meet_and_start_again(session):
    assert [session["machines"], session["other machine"]] == ["fine", 0]
    assert sorted(told_by(session, "met")) == ["met-0-0-3-1-0", "met-1-0-3-1-1", "met-2-1-3-1-2"]


def test_a_way_to_meet_that_is_unknown_is_refused(session):
    assert session["no such way to meet"].startswith(
        "LaunchError: The machines do not meet by `--rdzv_backend mail`"
    )


def test_a_port_that_is_taken_is_named_as_it_was_given(session):
    assert session["port is taken"].startswith("LaunchError: `use_port` is ")


def test_signals_have_their_former_effect_afterwards(session):
    assert session["handlers"]


def test_an_accelerator_before_the_launch_is_refused(session):
    start = "StateError: An `Accelerator` was built in this notebook before `notebook_launcher`"
    assert session["an accelerator was built"].startswith(start)


def test_a_gpu_that_was_used_before_is_refused(session):
    assert "by code or an import of this notebook, so proc" in session["something used the GPU"]
    assert session["the debug launcher uses no GPU"] == "fine"


def test_with_debug_mode_a_fork_tries_the_gpu_first(session):
    start = "StateError: A GPU was used before `notebook_launcher`, by something that torch does not know of"
    assert session["a fork cannot use the GPU"].startswith(start)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mixed_precision": "half"}, "`mixed_precision` is `half`, but it must be one of: no, fp16"),
        ({"node_rank": 1}, "`node_rank` is 1, but it must lie below `num_nodes`, 1"),
        ({"num_processes": -1}, "`num_processes` must be at least 1, got -1"),
        ({"num_processes": 0}, "`num_processes` must be at least 1, got 0"),
        ({"use_port": "http"}, "`use_port` is `http`, but it must be a number"),
        ({"use_port": 0, "num_nodes": 2}, "`use_port` is 0, a free one, but several machines"),
        (
            {"num_processes": 2, "rdzv_endpoint": "here"},
            "The port of `rdzv_endpoint` is `here`, but it must be a number",
        ),
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        notebook_launcher(print, **given)


COMPUTING = """
import gc
from datetime import timedelta
from types import SimpleNamespace
import torch
import torch.distributed as dist
from accel_launch.notebook import notebook_launcher
from accel_launch.notebook.ranks import _WholeLines

def compute():
    gc.collect()
    print(int(torch.ones(300, 300).mm(torch.ones(300, 300)).add(1).sum()))

torch.set_num_threads(4)
compute()
gc.disable()
trained = SimpleNamespace(group=dist.ProcessGroupGloo(dist.HashStore(), 0, 1, timedelta(seconds=5)))
trained.itself = trained
del trained
notebook_launcher(compute, num_processes=2)
"""


def test_processes_compute_after_the_notebook_has_computed_in_threads_and_left_a_process_group(tmp_path):
    (tmp_path / "computing.py").write_text(COMPUTING)
    assert run_script(tmp_path / "computing.py", timeout_s=120).stdout.split() == ["27090000"] * 3


class FakeXLA(types.ModuleType):
    """`torch_xla` with two cores: its processes get the function as the real ones do, through a pool's queue."""

    def __init__(self) -> None:
        super().__init__("torch_xla")
        self.calls: list[tuple[str, bool]] = []

    def launch(self, fn, args=(), start_method="spawn", debug_single_process=False):
        self.calls.append((start_method, debug_single_process))
        if debug_single_process:
            fn(0, *args)
            return
        context = multiprocessing.get_context(start_method)
        with concurrent.futures.ProcessPoolExecutor(max_workers=2, mp_context=context) as executor:
            list(executor.map(fn, range(2)))


@pytest.fixture
def torch_xla(monkeypatch) -> FakeXLA:
    module = FakeXLA()
    monkeypatch.setitem(sys.modules, "torch_xla", module)
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    return module


def test_a_library_that_imports_torch_xla_makes_no_tpu(torch_xla, monkeypatch):
    monkeypatch.delenv("PJRT_DEVICE")
    monkeypatch.delenv("TPU_NAME", raising=False)
    done: list[int] = []
    notebook_launcher(done.append, (1,), num_processes=1)
    assert (done, torch_xla.calls) == ([1], [])


@pytest.mark.parametrize(("num_processes", "is_single"), [(None, False), (1, True)])
def test_on_tpus_a_function_within_a_function_runs_in_forks(torch_xla, tmp_path, num_processes, is_single):
    def work(folder: Path, name: str) -> None:
        told = f"{name} {os.environ['ACCELERATE_MIXED_PRECISION']} {os.getpid() == this_process}"
        (folder / f"{os.getpid()}").write_text(told)

    this_process = os.getpid()
    notebook_launcher(work, (tmp_path, "x"), num_processes=num_processes, mixed_precision="bf16")
    assert torch_xla.calls == [("fork", is_single)]
    assert {path.read_text() for path in tmp_path.iterdir()} == {f"x bf16 {is_single}"}
    assert "ACCELERATE_MIXED_PRECISION" not in os.environ
