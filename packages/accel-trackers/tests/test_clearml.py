from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("clearml")

OFFLINE = {"CLEARML_OFFLINE_MODE": "1"}
SETTINGS = "sdk.development.report_use_subprocess: false\n"
"""Report in a thread. By default ClearML 2.1 forks a process next to threads of its own, whose locks it inherits
as they are, and `Task.close` waits for that process without a limit. It does not wake it either: a close takes 10 s.
"""


@pytest.fixture(autouse=True)
def settings(tmp_path):
    """Write the file of settings into the folder that is the script's home."""
    (tmp_path / "clearml.conf").write_text(SETTINGS)


def session(folder: Path) -> Path:
    (found,) = (path for path in (folder / ".clearml/cache/offline").iterdir() if path.is_dir())
    return found


def events(folder: Path, kind: str) -> list[dict]:
    lines = (session(folder) / "metrics.jsonl").read_text().splitlines()
    return [event for line in lines for event in json.loads(line) if event["type"] == kind]


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_task_has_every_value_however_the_script_ends(train, tmp_path, ends):
    train("clearml", {"task_name": "first"}, env=OFFLINE, ends=ends)
    found = [
        (event["iter"], event["metric"], event["variant"], event["value"])
        for event in events(tmp_path, "training_stats_scalar")
        if not event["metric"].startswith(":monitor:")
    ]
    assert found == [
        (0, "loss", "loss", 1.0), (0, "accuracy", "train", 0.0), (0, "accuracy", "test", 0.0),
        (1, "loss", "loss", 0.5), (1, "accuracy", "train", 1.0), (1, "accuracy", "test", 2.5),
        (2, "loss", "loss", 0.25), (2, "accuracy", "train", 2.0), (2, "accuracy", "test", 5.0),
    ]  # fmt: skip
    task = json.loads((session(tmp_path) / "task.json").read_text())
    assert (task["name"], task["project_name"]) == ("first", "digits")
    stored = {
        name.removeprefix("General/"): each["value"] for name, each in task["hyperparams"]["General"].items()
    }
    assert (stored["lr"], stored["data/name"], stored["model"]) == ("0.1", "digits", "ReLU()")


def test_variables_name_the_project_and_the_task(train, tmp_path):
    train(
        "clearml",
        {"task_name": "first"},
        env=OFFLINE | {"CLEARML_PROJECT": "named", "CLEARML_TASK": "second"},
    )
    task = json.loads((session(tmp_path) / "task.json").read_text())
    assert (task["name"], task["project_name"]) == ("second", "named")


def test_images_tables_and_single_values_are_in_the_task(train, tmp_path):
    train(
        "clearml",
        {},
        """
        log.drain()
        tracker.log_images({"digits": torch.ones(2, 3, 4, 5), "one/last": torch.zeros(1, 4, 5)}, step=7)
        tracker.log_table("words", columns=["word", "count"], data=[["a", 1], ["b", 2]], step=8)
        tracker.log({"best": 0.5})
        try:
            tracker.log_table("nothing")
        except ValueError as error:
            print(error)
        """,
        env=OFFLINE,
    )
    images = [
        (event["metric"], event["variant"], event["iter"])
        for event in events(tmp_path, "training_debug_image")
    ]
    assert images == [("digits", "0", 7), ("digits", "1", 7), ("one", "last", 7)]
    (table,) = events(tmp_path, "plot")
    assert (table["metric"], table["iter"]) == ("words", 8)
    (drawn,) = json.loads(table["plot_str"])["data"]
    assert drawn["cells"]["values"] == [["a", "b"], [1, 2]]
    assert "best" in (session(tmp_path) / "metrics.jsonl").read_text()


def test_a_task_that_runs_already_is_used_and_continues(train, tmp_path):
    printed = train(
        "clearml",
        {"task_name": "ignored"},
        """
        log.drain()
        tracker.finish()
        print("same:", tracker._run is task, "current:", Task.current_task() is task)
        """,
        before="""
        from clearml import Task
        task = Task.init("own project", "own task")
        """,
        env=OFFLINE,
    )
    assert "same: True current: True" in printed
