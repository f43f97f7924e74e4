from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("trackers")

BLOCK, HEADER = 32768, 7
FULL, FIRST = 1, 2


def records(folder: Path) -> list:
    """Read the log of LevelDB that an offline run is: records, cut where a block of 32 KiB ends."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = [folder] if folder.is_file() else folder.glob("wandb/offline-run-*/run-*.wandb")
    data, found, place = file.read_bytes(), [], 7  # after the file's own header
    while place + HEADER <= len(data):
        if (room := BLOCK - place % BLOCK) < HEADER:
            place += room
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        part = data[place + HEADER : place + HEADER + length]
        if kind in (FULL, FIRST):
            found.append(part)
        else:
            found[-1] += part
        place += HEADER + length
    return [Record.FromString(each) for each in found]


def history(folder: Path) -> list[dict]:
    """Return what was logged, one dict for each step."""
    return [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        for record in records(folder)
        if record.WhichOneof("record_type") == "history"
    ]


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    train("wandb", {"mode": "offline", "settings": {"console": "off"}}, ends=ends)
    steps = history(tmp_path)
    assert [(step["_step"], step["loss"]) for step in steps] == [(0, 1.0), (1, 0.5), (2, 0.25)]
    assert [step["accuracy/test"] for step in steps] == [0.0, 2.5, 5.0]
    (run,) = [record.run for record in records(tmp_path) if record.WhichOneof("record_type") == "run"]
    assert run.project == "digits"
    (exit_code,) = [
        record.exit.exit_code for record in records(tmp_path) if record.WhichOneof("record_type") == "exit"
    ]
    assert (exit_code == 0) == ends


def test_the_configuration_is_that_of_the_run(train, tmp_path):
    train("wandb", {"mode": "offline"})
    config = {}
    for record in records(tmp_path):
        for change in (*record.run.config.update, *record.config.update):
            config[change.key] = json.loads(change.value_json)
    config.pop("_wandb")
    assert config == {
        "lr": 0.1, "layers": [8, 8], "data": {"name": "digits"}, "model": "ReLU()", "seed": None,
    }  # fmt: skip


def test_images_tables_and_losses_next_to_them_are_all_in_the_run(train, tmp_path):
    """Next to a tracker that needs 5 ms for each call."""
    train(
        "wandb",
        {"mode": "offline"},
        """
        import time
        from accel_trackers import JsonlTracker
        class Slow(JsonlTracker):
            def log(self, values, step=None, **kwargs):
                time.sleep(0.005)
        slow = Slow("slow", "runs")
        log = BackgroundLog([slow, tracker])
        for step in range(3, 203):
            log.log({"loss": torch.tensor(step / 2)}, step=step)
            if step % 10 == 0:
                tracker.log_images({"digit": torch.zeros(1, 4, 5)}, step=step)
        tracker.log_images({"digits": torch.linspace(0, 1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5)}, step=203)
        tracker.log_table("words", columns=["word", "count"], data=[["a", 1], ["b", 2]], step=204)
        tracker.log({"note": "fine"}, step=205, commit=True)
        """,
    )
    by_step = {step["_step"]: step for step in history(tmp_path)}
    assert [by_step[step]["loss"] for step in range(3, 203)] == [step / 2 for step in range(3, 203)]
    assert [step for step in by_step if "digit/count" in by_step[step]] == list(range(10, 203, 10))
    images = by_step[203]
    assert images["digits/count"] == 2
    assert (images["digits/height"], images["digits/width"]) == (4, 5)
    assert by_step[204]["words/_type"] == "table-file"
    (table,) = tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    assert json.loads(table.read_text()) == {"columns": ["word", "count"], "data": [["a", 1], ["b", 2]]}
    assert by_step[205]["note"] == "fine"


def test_the_run_has_figures_histograms_artifacts_and_metrics_defined_by_the_script(train, tmp_path):
    train(
        "wandb",
        {"mode": "offline"},
        """
        from matplotlib.figure import Figure
        tracker.define_metric("loss", summary="min")
        tracker.log_figures({"plot": Figure(figsize=(1, 1), dpi=20)}, step=3)
        tracker.log_histograms({"weights": torch.tensor([0.0, 1.0, 1.0], dtype=torch.bfloat16)}, step=4)
        model = torch.nn.Linear(2, 1)
        tracker.watch(model, log_freq=1)
        model(torch.ones(1, 2)).sum().backward()
        tracker.log({"loss": 0.1}, step=5)
        open("notes.txt", "w").write("fine")
        tracker.log_artifact("notes.txt", "texts", type="text", aliases=["best"])
        """,
    )
    by_step = {step["_step"]: step for step in history(tmp_path)}
    assert (by_step[3]["plot/height"], by_step[3]["plot/count"]) == (20, 1)
    assert sum(by_step[4]["weights/values"]) == 3
    assert {"gradients/weight/values", "gradients/bias/values"} <= {
        name for step in by_step.values() for name in step
    }
    found = records(tmp_path)
    (metric,) = [record.metric for record in found if record.WhichOneof("record_type") == "metric"]
    assert (metric.name, metric.summary.min) == ("loss", True)
    (artifact,) = [record.artifact for record in found if record.WhichOneof("record_type") == "artifact"]
    assert (artifact.name, artifact.type, set(artifact.aliases)) == ("notes.txt", "text", {"best", "latest"})
    assert [entry.path for entry in artifact.manifest.contents] == ["texts/notes.txt"]


def test_a_run_that_is_finished_while_an_exception_is_handled_has_failed(train, tmp_path):
    train(
        "wandb",
        {"mode": "offline"},
        """
        try:
            raise ValueError("training went wrong")
        except ValueError:
            tracker.finish()
        """,
    )
    assert [each.exit.exit_code for each in records(tmp_path) if each.HasField("exit")] == [1]


def test_each_rank_may_have_a_separate_run(train_on_two_ranks, tmp_path):
    train_on_two_ranks("wandb", {}, env={})
    logged = set()
    for file in tmp_path.glob("wandb/offline-run-*/run-*.wandb"):
        (step,) = history(file)
        (run,) = [each.run for each in records(file) if each.HasField("run")]
        logged.add((run.run_group, step["rank"]))
    assert logged == {("first", 0), ("first", 1)}
