from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("trackers")


def messages(folder: Path) -> list[tuple[str, dict]]:
    (file,) = (folder / "comet").glob("*.zip")
    lines = zipfile.ZipFile(file).read("messages.json").decode().splitlines()
    return [(message["type"], message["payload"]) for message in map(json.loads, lines)]


def metrics(folder: Path) -> list[tuple[int, str, float]]:
    found = [payload["metric"] for kind, payload in messages(folder) if kind == "metric_msg"]
    names = {"loss", "accuracy/train", "accuracy/test"}
    return [
        (each["step"], each["metricName"], each["metricValue"])
        for each in found
        if each["metricName"] in names
    ]


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_an_experiment_has_every_value_however_the_script_ends(train, tmp_path, ends):
    body = "tracker.log({'note': 'fine'})"
    environ = {"COMET_OFFLINE_DIRECTORY": str(tmp_path / "comet"), "COMET_LOGGING_CONSOLE": "error"}
    train("comet_ml", {"online": False}, body, env=environ, ends=ends)
    assert metrics(tmp_path) == [
        (0, "loss", 1.0), (0, "accuracy/train", 0), (0, "accuracy/test", 0.0),
        (1, "loss", 0.5), (1, "accuracy/train", 1), (1, "accuracy/test", 2.5),
        (2, "loss", 0.25), (2, "accuracy/train", 2), (2, "accuracy/test", 5.0),
    ]  # fmt: skip
    others = {payload["key"]: payload["value"] for kind, payload in messages(tmp_path) if kind == "log_other"}
    assert others["note"] == "fine"
    given = [payload for kind, payload in messages(tmp_path) if kind == "parameter_msg"]
    params = [payload.get("param") or payload["params"] for payload in given]
    stored = {each["paramName"]: each["paramValue"] for each in params if each["paramName"] != "curr_step"}
    assert stored == {"lr": 0.1, "layers": [8, 8], "data|name": "digits", "model": "ReLU()", "seed": None}
    (file,) = (tmp_path / "comet").glob("*.zip")
    assert json.loads(zipfile.ZipFile(file).read("experiment.json"))["project_name"] == "digits"


def test_images_figures_histograms_tables_and_files_are_assets_of_the_experiment(train, tmp_path):
    train(
        "comet_ml",
        {"online": False},
        """
        from matplotlib.figure import Figure
        tracker.log_images({"digits": torch.rand(2, 3, 4, 5), "one": torch.zeros(1, 4, 5)}, step=3)
        tracker.log_figures({"plot": Figure()}, step=4)
        tracker.log_histograms({"weights": torch.ones(5, dtype=torch.bfloat16)}, step=5)
        tracker.log_table("words", columns=["word", "count"], data=[["a", 1], ["b", 2]], step=6)
        os.mkdir("folder")
        open("folder/notes.txt", "w").write("fine")
        tracker.log_artifact("folder/notes.txt", "texts")
        tracker.log_artifact("folder")
        """,
        env={"COMET_OFFLINE_DIRECTORY": str(tmp_path / "comet"), "COMET_LOGGING_CONSOLE": "error"},
    )
    uploads = [payload for kind, payload in messages(tmp_path) if kind == "file_upload"]
    about = [each["additional_params"] for each in uploads]
    assert {(each["figName"], each["step"]) for each in about if "figName" in each} == {
        ("digits/0", 3), ("digits/1", 3), ("one", 3), ("plot", 4),
    }  # fmt: skip
    names = {each["fileName"] for each in about if "fileName" in each}
    assert {"weights", "words_6.csv", "texts/notes.txt", "folder/notes.txt"} <= names
    archive = zipfile.ZipFile(next((tmp_path / "comet").glob("*.zip")))
    (table,) = [each for each in uploads if each["additional_params"].get("fileName") == "words_6.csv"]
    assert archive.read(table["file_path"]).decode().split() == ["word,count", "a,1", "b,2"]
