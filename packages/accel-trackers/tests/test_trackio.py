from __future__ import annotations

import json
import sqlite3

import pytest

pytestmark = pytest.mark.engine("trackers")


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    train(
        "trackio", {"name": "first"}, "tracker.log({'note': 'fine'}, step=9)" if ends else "",
        env={"TRACKIO_DIR": str(tmp_path / "trackio")}, ends=ends,
    )  # fmt: skip
    with sqlite3.connect(tmp_path / "trackio" / "digits.db") as database:
        logged = database.execute("select run_name, step, metrics from metrics order by step").fetchall()
        ((config,),) = database.execute("select config from configs").fetchall()
    assert [(name, step, json.loads(values)) for name, step, values in logged] == [
        ("first", 0, {"loss": 1.0, "accuracy/train": 0, "accuracy/test": 0.0}),
        ("first", 1, {"loss": 0.5, "accuracy/train": 1, "accuracy/test": 2.5}),
        ("first", 2, {"loss": 0.25, "accuracy/train": 2, "accuracy/test": 5.0}),
        *([("first", 9, {"note": "fine"})] if ends else []),
    ]
    stored = {name: value for name, value in json.loads(config).items() if not name.startswith("_")}
    assert stored == {
        "lr": 0.1, "layers": [8, 8], "data": {"name": "digits"}, "model": "ReLU()", "seed": None,
    }  # fmt: skip


def test_images_figures_tables_and_histograms_are_kept_with_their_steps(train, tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path / "trackio"
    train(
        "trackio",
        {"name": "first"},
        """
        import matplotlib.figure, pandas
        log.drain()
        tracker.log_images({"digits": torch.rand(2, 3, 4, 5)}, step=4, caption="seen")
        tracker.log_figures({"curve": matplotlib.figure.Figure(figsize=(1, 1), dpi=20)}, step=5)
        tracker.log_histograms({"weights": torch.tensor([0.0, 0.0, 1.0])}, step=6, num_bins=2)
        tracker.log_table("words", columns=["word", "count"], data=[["a", 1], ["b", 2]], step=7)
        tracker.log_table("frame", dataframe=pandas.DataFrame({"word": ["c"], "count": [3]}), step=8)
        """,
        env={"TRACKIO_DIR": str(folder)},
    )
    with sqlite3.connect(folder / "digits.db") as database:
        rows = database.execute("select step, metrics from metrics where step > 3").fetchall()
    logged = {step: json.loads(values) for step, values in rows}
    digits = logged[4]
    assert [digits[name]["caption"] for name in ("digits/0", "digits/1")] == ["seen", "seen"]
    files = [*digits.values(), logged[5]["curve"]]
    sizes = [image.open(folder / "media" / each["file_path"]).size for each in files]
    assert sizes == [(5, 4), (5, 4), (20, 20)]
    weights = logged[6]["weights"]
    assert (weights["values"], weights["bins"]) == ([2, 1], [0.0, 0.5, 1.0])
    assert logged[7]["words"]["_value"] == [{"word": "a", "count": 1}, {"word": "b", "count": 2}]
    assert logged[8]["frame"]["_value"] == [{"word": "c", "count": 3}]


def test_each_rank_may_have_a_separate_run(train_on_two_ranks, tmp_path):
    train_on_two_ranks("trackio", {}, env={"TRACKIO_DIR": str(tmp_path / "trackio")})
    with sqlite3.connect(tmp_path / "trackio" / "digits.db") as database:
        rows = database.execute("select run_name, metrics from metrics").fetchall()
    assert {name: json.loads(values) for name, values in rows} == {
        "first-rank0": {"rank": 0},
        "first-rank1": {"rank": 1},
    }
