from __future__ import annotations

import json
import sqlite3

import pytest

from accel_state.availability import why_not

pytestmark = pytest.mark.skipif(
    why_not("trackio") is not None, reason="needs the extra accel-trackers[trackio]"
)


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
