from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from accel_state.availability import why_not

pytestmark = pytest.mark.skipif(why_not("wandb") is not None, reason="needs the extra accel-trackers[wandb]")

BLOCK, HEADER = 32768, 7
FULL, FIRST = 1, 2


def records(folder: Path) -> list:
    """Read the log of LevelDB that an offline run is: records, cut where a block of 32 KiB ends."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
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


def test_images_tables_and_losses_beside_them_are_all_in_the_run(train, tmp_path):
    train(
        "wandb",
        {"mode": "offline"},
        """
        log.call_directly([tracker])
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
