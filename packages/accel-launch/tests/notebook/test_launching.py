"""The launchers of functions, one after another in a process like a notebook's kernel, which they fork."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from accel_launch.notebook import notebook_launcher
from accel_state.errors import ConfigError

pytestmark = pytest.mark.slow

SESSION = """
import json, os, signal, socket, sys, time
from pathlib import Path
import accel_launch.notebook.launching
from accel_launch.accelerators.protocol import Accelerators
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
    if attempt == "0":
        raise ValueError("once")

def attempt(name, launcher, *args, **given):
    try:
        launcher(*args, **given)
        seen[name] = "fine"
    except Exception as error:
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
with socket.create_server(("", 0)) as server:
    port = server.getsockname()[1]
    attempt("port is taken", notebook_launcher, work, num_processes=2, use_port=port)
seen["handlers"] = handlers == [signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)]

sys.path.insert(0, str(folder))
accel_launch.notebook.launching.find_accelerators = lambda environ: Accelerators("nvidia", ("0", "1"))
os.environ["ACCELERATE_DEBUG_MODE"] = "yes"  # this torch cannot use a GPU, in a fork or otherwise
attempt("a fork cannot use the GPU", notebook_launcher, work, **two)
import eager
torch.cuda.is_initialized = lambda: True
attempt("an import used the GPU", notebook_launcher, work, **two)
del os.environ["ACCELERATE_DEBUG_MODE"]
attempt("something used the GPU", notebook_launcher, work, **two)
attempt("the debug launcher uses no GPU", debug_launcher, work, ("cpu",))
accel_launch.notebook.launching.find_accelerators = lambda environ: Accelerators()

attempt("one", notebook_launcher, work, ("one", "a"))
seen["left behind"] = [name for name in os.environ if name.startswith(("ACCELERATE_", "TORCH_DISABLE"))]
attempt("an accelerator was built", notebook_launcher, work, **two)
(folder / "seen.json").write_text(json.dumps(seen))
"""
EAGER = "import torch\ntry:\n    torch.cuda.current_device()\nexcept Exception:\n    pass\n"


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each launch, by name, and the text that each rank has left in a file."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "session.py").write_text(SESSION)
    (folder / "eager.py").write_text(EAGER)
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
    return json.loads((folder / "seen.json").read_text()) | {"told": told, "written": finished.stderr}


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
    assert session["debug fails"].startswith("ProcessRaisedException: ")
    assert session["debug fails"].rstrip().endswith("ValueError: told to")


def test_the_first_cause_is_told_without_a_page_of_torch(session):
    first, *lines = session["fails"].splitlines()
    assert first.startswith("RanksFailedError: Rank 1 failed first: ValueError: told to (")
    assert first.endswith("session.py:21 in fail).")
    assert lines[-1] == "ValueError: told to"
    assert {"LaunchError", "ChildFailedError"} < set(session["bases of fails"])
    assert session["is killed"] == "RanksFailedError: Rank 1 failed first: it was killed by SIGKILL."
    assert "torch.distributed.elastic" not in session["written"]


def test_processes_start_again_as_often_as_asked(session):
    assert session["restarts"] == "fine"
    assert sorted(told_by(session, "once")) == ["once-0-0", "once-0-1", "once-1-0", "once-1-1"]


def test_a_port_that_is_taken_is_named_as_it_was_given(session):
    assert session["port is taken"].startswith("LaunchError: `use_port` is ")


def test_signals_have_their_former_effect_afterwards(session):
    assert session["handlers"]


def test_an_accelerator_before_the_launch_is_refused(session):
    start = "StateError: An `Accelerator` was built in this notebook before `notebook_launcher`"
    assert session["an accelerator was built"].startswith(start)


def test_a_gpu_that_was_used_before_is_refused_and_debug_mode_names_the_import(session):
    assert (
        "by code or an import of this notebook (`ACCELERATE_DEBUG_MODE=yes`"
        in session["something used the GPU"]
    )
    start = "StateError: A GPU was used before `notebook_launcher`, by the import of `eager` ("
    assert session["an import used the GPU"].startswith(start)
    assert "eager.py:3), so processes cannot be forked" in session["an import used the GPU"]
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
    ],
)
def test_wrong_values_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        notebook_launcher(print, **given)


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
    return module


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
