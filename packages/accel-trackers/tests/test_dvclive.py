from __future__ import annotations

import csv
import json
import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("trackers")


def metric(folder: Path, name: str) -> list[list[str]]:
    return list(csv.reader((folder / "plots" / "metrics" / f"{name}.tsv").open(), delimiter="\t"))


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    yaml = pytest.importorskip("yaml")
    train("dvclive", {"save_dvc_exp": False}, ends=ends)
    live = tmp_path / "dvclive"
    assert metric(live, "loss") == [["step", "loss"], ["0", "1.0"], ["1", "0.5"], ["2", "0.25"]]
    assert metric(live, "accuracy/test") == [["step", "test"], ["0", "0.0"], ["1", "2.5"], ["2", "5.0"]]
    last = json.loads((live / "metrics.json").read_text())
    assert last == {"loss": 0.25, "accuracy": {"train": 2, "test": 5.0}, "step": 2}
    assert yaml.safe_load((live / "params.yaml").read_text()) == {
        "lr": 0.1, "layers": [8, 8], "data": {"name": "digits"}, "model": "ReLU()", "seed": None,
    }  # fmt: skip


def test_texts_are_logged_the_step_advances_and_other_things_are_named(train, tmp_path):
    printed = train(
        "dvclive",
        {"dir": "elsewhere", "save_dvc_exp": False},
        """
        import warnings
        log.drain()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracker.log({"note": "fine", "many": torch.ones(2)})
        print([str(one.message) for one in caught])
        """,
    )
    assert "skips `many`: its `log` accepts numbers, strings and dicts of these, not Tensor" in printed
    assert metric(tmp_path / "elsewhere", "note") == [["step", "note"], ["3", "fine"]]


def test_a_live_of_ones_own_is_used_and_ended(train, tmp_path):
    train(
        "dvclive",
        {"dir": "other", "save_dvc_exp": False},
        """
        log.drain()
        from accel_trackers import DVCLiveTracker
        from dvclive import Live
        live = Live("own", save_dvc_exp=False)
        own = DVCLiveTracker(live=live)
        assert own.tracker is live
        own.log({"loss": 2.0}, step=5)
        own.finish()
        """,
    )
    assert json.loads((tmp_path / "own" / "metrics.json").read_text()) == {"loss": 2.0, "step": 5}


def test_images_of_every_step_are_kept(train, tmp_path):
    image = pytest.importorskip("PIL.Image")
    train(
        "dvclive",
        {"save_dvc_exp": False},
        """
        import matplotlib.figure
        tracker.log_images({"digits": torch.rand(2, 3, 4, 5), "one": torch.rand(1, 4, 5)}, step=4)
        for step in (4, 5):
            tracker.log_figures({"curve": matplotlib.figure.Figure(figsize=(1, 1), dpi=20)}, step=step)
        """,
    )
    folder = tmp_path / "dvclive" / "plots" / "images"
    sizes = {str(file.relative_to(folder)): image.open(file).size for file in folder.rglob("*.png")}
    assert sizes == {
        "digits/0/4.png": (5, 4), "digits/1/4.png": (5, 4), "one/4.png": (5, 4),
        "curve/4.png": (20, 20), "curve/5.png": (20, 20),
    }  # fmt: skip


def test_dvc_keeps_artifacts_and_the_experiment_has_the_name_of_the_run(train, tmp_path):
    yaml = pytest.importorskip("yaml")
    repository = pytest.importorskip("dvc.repo").Repo
    for command in (
        "init --quiet",
        "config user.name A",
        "config user.email a@b.c",
        "commit --quiet --allow-empty -m first",
    ):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    repository.init(str(tmp_path)).close()
    (tmp_path / "weights.bin").write_bytes(b"weights")
    train("dvclive", {}, "tracker.log_artifact('weights.bin', 'net', type='model', desc='small')")
    with repository(str(tmp_path)) as opened:
        (name,) = (name for found in opened.experiments.ls(all_commits=True).values() for name, _ in found)
    assert re.fullmatch(r"digits-\d{8}-\d{6}", name)
    declared = yaml.safe_load((tmp_path / "dvc.yaml").read_text())["artifacts"]
    assert declared == {"net": {"path": "weights.bin", "type": "model", "desc": "small"}}
    assert (tmp_path / "weights.bin.dvc").is_file()
