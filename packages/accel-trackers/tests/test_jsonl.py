from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import closing

import pytest
import torch

from accel_state.errors import ConfigError, StateError
from accel_trackers import JsonlTracker
from tools.harness.scripts import Script


@pytest.fixture
def tracker(tmp_path, fresh_state):
    tracker = JsonlTracker("run", tmp_path)
    tracker.start()
    yield tracker
    tracker.finish()


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_each_call_is_one_line_that_is_there_at_once(tracker, tmp_path):
    tracker.log({"loss": torch.tensor(0.5), "note": "ü\n"}, step=1)
    tracker.log({"many": torch.ones(2), "bad": float("nan")}, split="test")
    first, second = lines(tmp_path / "run" / "metrics.jsonl")
    assert (first["step"], first["values"]) == (1, {"loss": 0.5, "note": "ü\n"})
    assert (second["step"], second["values"]) == (None, {"many": [1.0, 1.0], "bad": "NaN"})
    assert second["split"] == "test"
    assert first["time"] <= second["time"]


def test_values_may_be_called_like_the_members_of_the_line(tracker):
    tracker.log({"step": 5, "time": 6, "values": 7}, step=1)
    (line,) = lines(tracker.path)
    assert line["values"] == {"step": 5, "time": 6, "values": 7}
    assert line["step"] == 1


def test_the_configuration_is_stored_next_to_it(tracker, tmp_path):
    tracker.store_init_configuration({"lr": 1e-5, "model": torch.nn.ReLU()})
    assert json.loads((tmp_path / "run" / "config.json").read_text()) == {"lr": 1e-5, "model": "ReLU()"}


def test_a_continued_run_appends_after_a_line_that_was_torn(tracker, tmp_path):
    tracker.log({"a": 1}, step=0)
    tracker.finish()
    with tracker.path.open("a") as file:
        file.write('{"time": 1, "st')
    again = JsonlTracker("run", tmp_path)
    again.log({"a": 2}, step=1)
    again.finish()
    texts = tracker.path.read_text().splitlines()
    assert [json.loads(texts[i])["values"] for i in (0, 2)] == [{"a": 1}, {"a": 2}]
    assert len(texts) == 3


def test_a_process_that_is_killed_has_written_what_it_logged(tmp_path):
    code = (
        "import os, signal, sys; from accel_trackers import JsonlTracker;"
        "t = JsonlTracker('run', sys.argv[1]);"
        "[t.log({'i': i}, step=i) for i in range(50)]; os.kill(os.getpid(), signal.SIGKILL)"
    )
    with closing(Script(["-c", code, tmp_path])) as script:
        assert script.process.wait(timeout=60) == -signal.SIGKILL
    assert [line["step"] for line in lines(tmp_path / "run" / "metrics.jsonl")] == list(range(50))


def test_a_file_that_was_deleted_is_named_and_a_new_one_has_what_follows(tracker):
    tracker.log({"a": 1}, step=1)
    shutil.rmtree(tracker.logging_dir)
    with pytest.warns(UserWarning, match=r"metrics.jsonl` was deleted"):
        tracker.log({"a": 2}, step=2)
    tracker.log({"a": 3}, step=3)
    assert [line["step"] for line in lines(tracker.path)] == [2, 3]


@pytest.mark.parametrize("name", ["metrics.jsonl", "config.json"])
def test_what_is_no_regular_file_is_refused_and_not_waited_for(tmp_path, fresh_state, name):
    (tmp_path / "run").mkdir()
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(ConfigError, match=f"{name}` is not a regular file"):
        JsonlTracker("run", tmp_path).start()


def test_a_finished_run_is_not_silently_opened_again(tracker):
    tracker.log({"a": 1}, step=1)
    tracker.finish()
    tracker.finish()
    with pytest.raises(StateError, match="The run of the tracker `jsonl` is finished"):
        tracker.log({"a": 2}, step=2)
    assert [line["step"] for line in lines(tracker.path)] == [1]


def test_each_line_is_strict_json(tracker):
    tracker.log({"half": "\ud800", "a": float("inf")}, step=float("nan"))
    tracker.log({"a": 1}, step=torch.tensor(3))
    first, second = lines(tracker.path)
    assert (first["step"], first["values"]) == ("NaN", {"half": "\ud800", "a": "Infinity"})
    assert second["step"] == 3
