from __future__ import annotations

import importlib.util
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch.distributed as dist

from accel_state.errors import StateError
from accel_trackers import (
    BackgroundLog,
    GeneralTracker,
    JsonlTracker,
    TensorBoardTracker,
    TrackerError,
    on_main_process,
)
from accel_trackers.general_tracker import is_marked, runs_here
from accel_trackers.service import ServiceTracker


class Recorder(GeneralTracker):
    name = "recorder"
    requires_logging_directory = False

    def __init__(self, main_process_only=True):
        super().__init__()
        self.main_process_only = main_process_only
        self.calls = []

    @property
    def tracker(self):
        return self

    @on_main_process
    def log(self, values, step=None, **kwargs):
        """Return something."""
        self.calls.append((values, step, kwargs))
        return "logged"


class Service(ServiceTracker):
    name = "service"
    main_process_only = False

    def _open(self):
        return "run"

    def _log(self, run, values, step):
        self._supported(values)


class Slow(Recorder):
    """Ends no call before the gate opens."""

    name = "slow"
    log_in_background = True

    def __init__(self):
        super().__init__(main_process_only=False)
        self.began, self.gate = threading.Event(), threading.Event()

    @on_main_process
    def log(self, values, step=None, **kwargs):
        self.began.set()
        assert self.gate.wait(60)


class Failing(Recorder):
    name = "failing"

    @on_main_process
    def log(self, values, step=None, **kwargs):
        raise OSError("disk is gone")


def open_when_warned(gate, caught):
    """Open the gate once a caller of `log` is warned that it waits."""
    deadline = time.monotonic() + 60
    while not any("cannot keep up" in str(one.message) for one in caught) and time.monotonic() < deadline:
        time.sleep(0.001)
    gate.set()


def record(main_process_only):
    recorder = Recorder(main_process_only)
    result = recorder.log({"a": 1}, step=2, extra=3)
    return result, recorder.calls


def test_only_the_main_process_runs_a_marked_method(world):
    assert world(2).run(record, True) == [("logged", [({"a": 1}, 2, {"extra": 3})]), (None, [])]


def test_every_process_runs_it_if_the_tracker_requests_it(world):
    assert world(2).run(record, False) == [("logged", [({"a": 1}, 2, {"extra": 3})])] * 2


def warnings_of_rank_1():
    """Return what rank 1 is warned of where its trackers are slow, fail, and cannot log a value."""
    if dist.get_rank() == 0:
        return []
    slow = Slow()
    log = BackgroundLog([slow, Failing(main_process_only=False), Service()], capacity=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log.log({"note": "text"})
        slow.began.wait(60)
        log.log({})  # waits in the queue, which is full then
        threading.Thread(target=open_when_warned, args=(slow.gate, caught)).start()
        log.log({})
        with pytest.raises(TrackerError, match="`failing` failed"):
            log.close()
    return sorted(str(one.message).partition(".")[0].partition(":")[0] for one in caught)


def test_trackers_of_other_ranks_warn_there(world):
    assert world(2).run(warnings_of_rank_1)[1] == [
        "1 logged values wait for the tracker `slow`, which cannot keep up",
        "The tracker `failing` failed to log step None",
        "The tracker `service` skips `note`",
    ]


def log_in_background(folder):
    trackers = [JsonlTracker("run", folder), TensorBoardTracker("run", folder)]
    for tracker in trackers:
        tracker.log_in_background = True
        tracker.start()
        tracker.store_init_configuration({"rate": 0.1})
    log = BackgroundLog(trackers)
    log.log({"loss": 1.0}, step=0)
    num_threads = sum(thread.name.startswith("accel-trackers") for thread in threading.enumerate())
    log.close()
    for tracker in trackers:
        tracker.finish()
    if runs_here(trackers[0]):
        return "main", num_threads
    for tracker in trackers:
        with pytest.raises(StateError, match="on the main process only.*`if PartialState"):
            _ = tracker.tracker
    return "other", num_threads


@pytest.mark.skipif(
    importlib.util.find_spec("tensorboard") is None, reason="needs accel-trackers[tensorboard]"
)
def test_two_processes_make_one_run_and_the_other_one_starts_no_thread(world, tmp_path):
    # A thread for each tracker, and one that waits for a SIGTERM.
    assert world(2).run(log_in_background, str(tmp_path)) == [("main", 3), ("other", 0)]
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    # One event file for what is logged, one for the hyperparameters; none of the other process.
    assert len(list(Path(tmp_path).rglob("events.out.tfevents.*"))) == 2


def test_a_marked_method_keeps_its_name_and_docstring(fresh_state):
    assert Recorder.log.__name__ == "log"
    assert Recorder.log.__doc__ == "Return something."
    assert is_marked(Recorder().log)
    assert not is_marked(Recorder().start)
