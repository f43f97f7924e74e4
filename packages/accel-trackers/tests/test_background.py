from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import threading
import time
from functools import partial

import pytest
import torch

from accel_state.errors import ConfigError, StateError
from accel_trackers import BackgroundLog, GeneralTracker, TrackerError
from tools.harness.scripts import run_script

pytestmark = pytest.mark.usefixtures("fresh_state")


class Fake(GeneralTracker):
    """Records its calls; waits for a gate; fails at given steps."""

    requires_logging_directory = False

    def __init__(self, name="fake", *, gate=None, fails_at=(), background=True):
        self.name = name
        super().__init__()
        self.gate, self.fails_at, self.calls, self.threads = gate, set(fails_at), [], set()
        self.log_in_background = background
        self.num_calls = 0

    @property
    def tracker(self):
        return self

    def log(self, values, step=None, **kwargs):
        self.num_calls += 1
        if self.gate is not None:
            assert self.gate.wait(30)
        self.threads.add(threading.current_thread())
        if step in self.fails_at:
            raise OSError(f"disk {step} is gone")
        self.calls.append((step, values, kwargs))

    @property
    def steps(self):
        return [step for step, _, _ in self.calls]


def wait_for(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("accel-trackers")]


@pytest.fixture
def logs():
    made = []

    def make(*trackers, **options):
        made.append(BackgroundLog(trackers, **options))
        return made[-1]

    yield make
    for log in made:
        try:
            log.close()
        except TrackerError:
            pass
    wait_for(lambda: threads() == [])


def test_log_returns_while_the_tracker_is_still_busy(logs):
    gate = threading.Event()
    slow = Fake(gate=gate)
    log = logs(slow)
    for step in range(100):
        log.log({"loss": step}, step=step)
    assert slow.calls == []
    gate.set()
    log.drain()
    assert slow.steps == list(range(100))
    assert threading.current_thread() not in slow.threads


def test_order_is_kept_for_every_tracker(logs):
    trackers = [Fake("a"), Fake("b")]
    log = logs(*trackers)
    for step in range(500):
        log.log({"x": step}, step=step)
    log.close()
    assert [tracker.steps for tracker in trackers] == [list(range(500))] * 2


def test_values_are_those_at_the_time_of_the_call(logs):
    gate = threading.Event()
    fake = Fake(gate=gate)
    log = logs(fake)
    loss, values = torch.tensor(1.0, requires_grad=True), {}
    values["loss"] = loss * 1
    log.log(values, step=0)
    with torch.no_grad():
        values["loss"].zero_()
    values["other"] = 1
    gate.set()
    log.drain()
    assert fake.calls == [(0, {"loss": 1.0}, {})]
    assert type(fake.calls[0][1]["loss"]) is float


def test_a_tracker_gets_its_own_arguments_and_cannot_change_what_others_see(logs):
    class Greedy(Fake):
        def log(self, values, step=None, **kwargs):
            super().log(dict(values), step, **kwargs)
            values.clear()

    greedy, fake, direct = Greedy("greedy"), Fake("fake"), Greedy("direct", background=False)
    log = logs(direct, greedy, fake)
    log.log({"x": 1}, 3, {"fake": {"commit": False}})
    log.drain()
    assert greedy.calls == direct.calls == [(3, {"x": 1}, {})]
    assert fake.calls == [(3, {"x": 1}, {"commit": False})]


def test_a_failure_surfaces_at_the_next_log_which_is_not_lost(logs):
    failing, fine = Fake("failing", fails_at=[1]), Fake("fine")
    log = logs(failing, fine, on_error="raise")
    log.log({"x": 0}, step=0)
    log.log({"x": 1}, step=1)
    wait_for(lambda: failing.num_calls == 2)
    with pytest.raises(
        TrackerError, match="`failing` failed to log step 1: OSError: disk 1 is gone"
    ) as caught:
        log.log({"x": 2}, step=2)
    assert isinstance(caught.value.__cause__, OSError)
    log.drain()  # told once
    assert failing.steps == [0, 2]
    assert fine.steps == [0, 1, 2]


@pytest.mark.parametrize("end", ["drain", "close"])
def test_a_failure_of_the_last_log_surfaces_at_the_end(logs, end):
    gate = threading.Event()
    log = logs(Fake(gate=gate, fails_at=[0, 1, 2]), on_error="raise")
    log.log({}, step=0)
    gate.set()
    with pytest.raises(TrackerError, match="failed to log step 0"):
        getattr(log, end)()


def test_several_failures_are_counted(logs):
    gate = threading.Event()
    log = logs(Fake(gate=gate, fails_at=[0, 1, 2]), on_error="raise")
    for step in range(3):
        log.log({}, step=step)
    gate.set()
    with pytest.raises(TrackerError, match="step 0: .* So did 2 more calls since"):
        log.drain()


def test_even_a_tracker_that_exits_does_not_end_the_thread(logs):
    class Exits(Fake):
        def log(self, values, step=None, **kwargs):
            sys.exit("no")

    fine = Fake("fine")
    log = logs(Exits("exits"), fine, on_error="raise")
    for step in range(2):
        with pytest.raises(TrackerError, match="SystemExit: no"):
            log.log({}, step=step)
            log.drain()
    assert fine.steps == [0, 1]


def test_a_full_queue_waits_and_warns_and_loses_nothing(logs):
    gate = threading.Event()
    slow = Fake("slow", gate=gate)
    log = logs(slow, capacity=2)
    for step in range(3):  # one in the tracker, two in the queue
        log.log({}, step=step)
        wait_for(lambda: slow.num_calls == 1)

    def log_one_too_many():
        threading.Thread(target=lambda: [wait_for(lambda: caught.list), gate.set()]).start()
        log.log({}, step=3)

    with pytest.warns(
        UserWarning, match="2 logged values wait for the tracker `slow`, which cannot"
    ) as caught:
        log_one_too_many()
    log.drain()
    assert slow.steps == [0, 1, 2, 3]


def test_a_tracker_that_hangs_is_an_error_and_not_a_hang(logs):
    gate = threading.Event()
    log = logs(Fake("stuck", gate=gate), stall_timeout_s=0.05, on_error="raise")
    log.log({}, step=0)
    log.log({}, step=1)
    with pytest.raises(TrackerError, match="`stuck` has hung for 0.05 s, with . logged values not written"):
        log.drain()
    gate.set()


def test_a_tracker_that_hung_is_not_waited_for_again_and_others_are_written(logs):
    gate, fine = threading.Event(), Fake("fine")
    log = logs(Fake("stuck", gate=gate), fine, capacity=1, stall_timeout_s=0.5)

    def log_all():
        for step in range(20):
            log.log({}, step=step)

    began = time.monotonic()
    with pytest.warns(UserWarning, match="`stuck` has hung") as caught:
        log_all()
    assert time.monotonic() - began < 5  # of 18 waits of 0.5 s there is one
    assert sum("has hung" in str(warning.message) for warning in caught) == 1
    gate.set()
    with pytest.raises(TrackerError, match="`stuck` has hung .* So did .* more calls since"):
        log.close()
    assert fine.steps == list(range(20))


def test_a_tracker_that_hung_when_it_was_to_be_called_directly_gets_what_is_logged_later(logs):
    gate = threading.Event()
    stuck = Fake("stuck", gate=gate)
    log = logs(stuck, stall_timeout_s=0.05)
    log.log({}, step=0)
    with pytest.warns(UserWarning, match="`stuck` has hung"):
        log.call_directly([stuck])
    gate.set()
    wait_for(lambda: stuck.steps == [0])
    log.log({}, step=1)
    wait_for(lambda: stuck.steps == [0, 1])


def test_a_slow_tracker_that_continues_is_not_taken_for_hanging(logs):
    class Slow(Fake):
        def log(self, values, step=None, **kwargs):
            time.sleep(0.03)
            super().log(values, step, **kwargs)

    slow = Slow()
    log = logs(slow, stall_timeout_s=0.1)
    for step in range(10):
        log.log({}, step=step)
    log.drain()
    assert slow.steps == list(range(10))


def test_a_tracker_that_must_be_called_from_its_thread_is(logs):
    fake = Fake(background=False)
    log = logs(fake)
    log.log({"loss": torch.tensor(1.0)}, step=0)
    assert fake.calls == [(0, {"loss": 1.0}, {})]
    assert fake.threads == {threading.current_thread()}
    assert threads() == []


class OfAPerson(GeneralTracker):
    """A tracker that is silent about threads, as sqlite3, which refuses to be called from another one."""

    name, requires_logging_directory, tracker = "person", False, None

    def __init__(self):
        self.database = sqlite3.connect(":memory:")
        self.database.execute("create table losses (step, loss)")

    def log(self, values, step=None, **kwargs):
        self.database.execute("insert into losses values (?, ?)", (step, values["loss"]))


def test_a_tracker_without_a_preference_is_called_in_the_thread_of_the_caller(logs):
    mine = OfAPerson()
    log = logs(mine, on_error="raise")
    log.log({"loss": torch.tensor(0.5)}, step=0)
    assert mine.database.execute("select * from losses").fetchall() == [(0, 0.5)]


def test_the_slowest_tracker_delays_no_other(logs):
    gate, fast = threading.Event(), Fake("fast")
    log = logs(Fake("slow", gate=gate), fast)
    for step in range(50):
        log.log({}, step=step)
    wait_for(lambda: fast.steps == list(range(50)))
    gate.set()


@pytest.mark.parametrize("background", [True, False])
def test_a_tracker_that_fails_is_warned_of_once_and_raised_in_the_end(logs, background):
    failing = Fake("failing", fails_at=range(5), background=background)
    log = logs(failing)

    def log_all():
        for step in range(10):
            log.log({}, step=step)
            log.drain()

    with pytest.warns(UserWarning, match="`failing` failed to log step 0: OSError: disk 0 is gone") as caught:
        log_all()
    assert len(caught) == 1
    assert failing.steps == [5, 6, 7, 8, 9]
    with pytest.raises(TrackerError, match="failed to log step 0: .* So did 4 more calls since"):
        log.close()


def test_a_tracker_that_is_called_directly_raises_at_once_where_that_is_requested(logs):
    fine = Fake("fine", background=False)
    log = logs(Fake("failing", fails_at=[0], background=False), fine, on_error="raise")
    with pytest.raises(TrackerError, match="`failing` failed to log step 0"):
        log.log({}, step=0)
    assert fine.steps == [0]


def test_errors_of_several_trackers_are_reported_together(logs):
    log = logs(Fake("one", fails_at=[0]), Fake("two", fails_at=[0], background=False), on_error="raise")
    log.log({}, step=1)
    with pytest.raises(TrackerError, match="`(one|two)` failed to log step 0") as caught:
        log.log({}, step=0)
        log.close()
    notes = getattr(caught.value, "__notes__", [])
    assert notes == [] or "Also: The tracker `two` failed" in notes[0]


def test_on_error_takes_two_words():
    with pytest.raises(ConfigError, match="`on_error` must be `warn` or `raise`, got `ignore`"):
        BackgroundLog([], on_error="ignore")


def test_ctrl_c_during_a_direct_call_is_not_taken_for_an_error_of_the_tracker(logs):
    class Interrupted(Fake):
        def log(self, values, step=None, **kwargs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        logs(Interrupted(background=False)).log({}, step=0)


def test_a_figure_is_drawn_before_log_returns(logs):
    figures = pytest.importorskip("matplotlib.figure")
    gate = threading.Event()
    fake = Fake(gate=gate)
    log = logs(fake)
    figure = figures.Figure(figsize=(1, 1), dpi=20, facecolor="red")
    log.log({"plot": figure, "group": {"same": [figure]}}, step=0)
    figure.clf()
    figure.set_facecolor("blue")
    gate.set()
    log.drain()
    ((_, values, _),) = fake.calls
    for picture in (values["plot"], values["group"]["same"][0]):
        assert picture.size == (20, 20)
        assert picture.getpixel((10, 10)) == (255, 0, 0, 255)


def test_a_tracker_that_is_called_directly_gets_the_figure_itself(logs):
    figures = pytest.importorskip("matplotlib.figure")
    fake, figure = Fake(background=False), figures.Figure()
    logs(fake).log({"plot": figure}, step=0)
    assert fake.calls[0][1]["plot"] is figure


def test_close_twice_is_fine_and_logging_afterwards_is_refused(logs):
    log = logs(Fake())
    log.log({}, step=0)
    log.close()
    log.close()
    wait_for(lambda: threads() == [])
    with pytest.raises(StateError, match="This log is closed"):
        log.log({}, step=1)


def test_a_capacity_below_one_is_refused():
    with pytest.raises(ConfigError, match="`capacity` must be at least 1, got 0"):
        BackgroundLog([], capacity=0)


def test_a_fork_cannot_log_and_its_exit_does_not_wait(logs, tmp_path):
    log = logs(Fake())
    log.log({}, step=0)
    log.drain()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            try:
                log.log({}, step=1)
            except StateError as error:
                (tmp_path / "said").write_text(str(error))
            log.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert "not from a fork of it" in (tmp_path / "said").read_text()


SCRIPT = """
import os, signal, sys, time
from accel_trackers import BackgroundLog, JsonlTracker, TensorBoardTracker
class Slow(JsonlTracker):
    log_in_background = True
    def log(self, values, step=None, **kwargs):
        time.sleep(0.002)
        if step == 150 and sys.argv[2] == "tracker":
            raise OSError("disk is gone")
        if step == 150 and sys.argv[2] == "ended by others":  # long after the last line of the script
            os.kill(os.getpid(), signal.SIGTERM)
        super().log(values, step, **kwargs)
trackers = [Slow("run", sys.argv[1])]
for tracker in trackers:
    tracker.start()
log = BackgroundLog(trackers)
for step in range(200):
    log.log({"loss": step}, step=step)
if sys.argv[2] == "raise":
    raise ValueError("training went wrong")
if sys.argv[2] == "exit":
    sys.exit(3)
if sys.argv[2] == "interrupt":
    raise KeyboardInterrupt
"""


def trained(folder, *, how, script=SCRIPT):
    (folder / "train.py").write_text(script)
    return run_script(folder / "train.py", str(folder), how), folder / "run"


def steps_in(run):
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


# How a script ends: its exit code, and what it says.
WAYS = {
    "end": ({0}, ""),
    "raise": ({1}, "ValueError: training went wrong"),
    "exit": ({3}, ""),
    "interrupt": ({-2, 130}, "KeyboardInterrupt"),
    "ended by others": ({-15}, ""),
}


@pytest.mark.parametrize(
    ("outcome", "exit_codes", "said"),
    [(partial(trained, how=how), *WAYS[how]) for how in WAYS],
    ids=list(WAYS),
    indirect=["outcome"],
)
def test_a_script_that_just_ends_however_has_written_everything(outcome, exit_codes, said):
    done, run = outcome
    assert done.returncode in exit_codes, done.stderr
    assert said in done.stderr
    assert steps_in(run) == list(range(200))


@pytest.mark.parametrize(
    "outcome",
    [partial(trained, how="raise", script=SCRIPT.replace("[Slow(", "[TensorBoardTracker("))],
    ids=["raise"],
    indirect=True,
)
def test_tensorboard_has_everything_too_when_a_script_raises(outcome):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done, run = outcome
    assert done.returncode == 1
    events = accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(200))


ENDED_AT_ONCE = """
import os, sys
from accel_trackers import BackgroundLog, JsonlTracker, TensorBoardTracker
trackers = [JsonlTracker("run", sys.argv[1]), TensorBoardTracker("run", sys.argv[1])]
for tracker in trackers:
    tracker.start()
log = BackgroundLog(trackers)
for step in range(200):
    log.log({"loss": step}, step=step)
os.kill(os.getpid(), int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    ("outcome", "signum"),
    [
        (partial(trained, how=str(int(signum)), script=ENDED_AT_ONCE), signum)
        for signum in (signal.SIGTERM, signal.SIGKILL)
    ],
    ids=["SIGTERM", "SIGKILL"],
    indirect=["outcome"],
)
def test_files_of_local_trackers_have_everything_when_the_process_is_ended(outcome, signum):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done, run = outcome
    assert done.returncode == -signum, done.stderr
    assert steps_in(run) == list(range(200))
    events = accumulator.EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(200))


ENDED_IN_A_BARRIER = """
import ctypes, os, signal, sys, threading, time
from accel_trackers import BackgroundLog, JsonlTracker
class Slow(JsonlTracker):
    log_in_background = True
    def log(self, values, step=None, **kwargs):
        time.sleep(0.002)
        super().log(values, step, **kwargs)
os.register_at_fork(after_in_child=lambda: time.sleep(0.3))  # the signal arrives before the next hook
tracker = Slow("run", sys.argv[1])
tracker.start()
log = BackgroundLog([tracker])
pid = os.fork()
if pid == 0:
    time.sleep(60)
for step in range(200):
    log.log({"loss": step}, step=step)
os.kill(pid, signal.SIGTERM)  # as a loader ends its workers
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
if sys.argv[2] == "barrier":
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):  # C code that no signal interrupts
        ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex is zeros on Linux")
@pytest.mark.parametrize(("how", "return_code"), [("barrier", -signal.SIGTERM), ("the end", 0)])
def test_queued_values_are_written_before_a_sigterm_ends_a_process_that_waits(tmp_path, how, return_code):
    done, run = trained(tmp_path, how=how, script=ENDED_IN_A_BARRIER)
    assert done.returncode == return_code, done.stderr
    assert steps_in(run) == list(range(200))


@pytest.mark.parametrize("outcome", [partial(trained, how="tracker")], ids=["tracker"], indirect=True)
def test_a_failure_after_the_last_log_is_reported_at_exit(outcome):
    done, run = outcome
    assert "TrackerError: The tracker `jsonl` failed to log step 150: OSError: disk is gone" in done.stderr
    assert steps_in(run) == [step for step in range(200) if step != 150]
