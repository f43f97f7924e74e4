from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("aim")

READER = """
import json
import aim
from aim.storage.context import Context

def series(sequence, show):
    steps, (values, *_) = sequence.data.items_list()
    return [[step, show(value)] for step, value in zip(steps, values)]

(run,) = aim.Repo("runs").iter_runs()
print(json.dumps({
    "name": run.name,
    "hparams": run["hparams"],
    "metrics": {metric.name: series(metric, float) for metric in run.metrics()},
    "texts": series(run.get_text_sequence("note", Context({})), lambda text: text.data),
    "images": series(run.get_image_sequence("digits", Context({"subset": "test"})),
                     lambda images: [[image.width, image.height, image.caption] for image in images]),
}))
"""


def read(folder: Path) -> dict:
    # A run is visible after this only; `aim up` does it by itself.
    aim = Path(sys.executable).parent / "aim"
    reindex = [str(aim), "storage", "--repo", "runs", "reindex", "-y"]
    for command in (reindex, [sys.executable, "-c", READER]):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    printed = train(
        "aim",
        {"system_tracking_interval": None, "capture_terminal_logs": False},
        """
        import warnings
        log.drain()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            tracker.log({"note": "fine", "many": torch.ones(2)}, step=3)
        print([str(one.message) for one in caught])
        tracker.log_images(
            {"digits": torch.rand(2, 3, 4, 5)},
            step=4,
            kwargs={"aim_image": {"caption": "seen"}, "track": {"context": {"subset": "test"}}},
        )
        """,
        ends=ends,
    )
    assert "skips `many`: its `log` accepts numbers, strings, Aim's objects and dicts of these" in printed
    run = read(tmp_path)
    assert run["name"] == "digits"
    assert run["hparams"] == {
        "lr": 0.1, "layers": [8, 8], "data": {"name": "digits"}, "model": "ReLU()", "seed": None,
    }  # fmt: skip
    assert run["metrics"] == {
        "loss": [[0, 1.0], [1, 0.5], [2, 0.25]],
        "accuracy/train": [[0, 0.0], [1, 1.0], [2, 2.0]],
        "accuracy/test": [[0, 0.0], [1, 2.5], [2, 5.0]],
    }
    assert run["texts"] == [[3, "fine"]]
    assert run["images"] == [[4, [[5, 4, "seen"], [5, 4, "seen"]]]]
