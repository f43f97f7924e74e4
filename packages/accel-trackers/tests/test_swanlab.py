from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("trackers")


def records(folder: Path) -> list:
    """Read the file of the offline run below ``folder``."""
    (file,) = folder.glob("swanlog/run-*/*.swanlab")
    return records_in(file)


def records_in(file: Path) -> list:
    """Read the file of an offline run with SwanLab's own reader, as `swanlab sync` does."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    reader.open(file)
    found = [Record.FromString(data) for data in reader]
    reader.close()
    return found


@pytest.mark.parametrize("ends", [True, False], ids=["finished", "raised"])
def test_a_run_has_every_value_however_the_script_ends(train, tmp_path, ends):
    yaml = pytest.importorskip("yaml")
    body = """
    tracker.log_images({"digits": torch.rand(2, 3, 4, 5)}, step=3, caption="seen")
    tracker.log({"note": "fine"}, step=4)
    """
    train("swanlab", {"mode": "offline", "log_dir": str(tmp_path / "swanlog")}, body, ends=ends)
    found = records(tmp_path)
    scalars = [record.scalar for record in found if record.HasField("scalar")]
    assert [(scalar.key, scalar.step, scalar.value.number) for scalar in scalars] == [
        ("loss", 0, 1.0), ("accuracy/train", 0, 0.0), ("accuracy/test", 0, 0.0),
        ("loss", 1, 0.5), ("accuracy/train", 1, 1.0), ("accuracy/test", 1, 2.5),
        ("loss", 2, 0.25), ("accuracy/train", 2, 2.0), ("accuracy/test", 2, 5.0),
    ]  # fmt: skip
    media = {record.media.key: record.media for record in found if record.HasField("media")}
    assert (media["digits"].step, len(media["digits"].value.items)) == (3, 2)
    assert (media["note"].step, len(media["note"].value.items)) == (4, 1)
    assert len(list(tmp_path.glob("swanlog/run-*/media/image/*.png"))) == 2
    assert found[0].start.project == "digits"
    assert bool(found[-1].finish.error) != ends
    (file,) = tmp_path.glob("swanlog/run-*/files/config.yaml")
    stored = {name: each["value"] for name, each in yaml.safe_load(file.read_text()).items()}
    assert (stored["lr"], stored["layers"], stored["data"]) == (0.1, [8, 8], {"name": "digits"})
    assert stored["model"] == "ReLU()"


def test_figures_are_pictures_of_their_size_and_a_run_that_raised_has_crashed(train, tmp_path):
    image = pytest.importorskip("PIL.Image")
    from swanlab.proto.swanlab.run.v1 import run_pb2

    body = """
    import matplotlib.figure
    tracker.log_figures({"curve": matplotlib.figure.Figure(figsize=(1, 1), dpi=20)}, step=3, caption="seen")
    """
    train("swanlab", {"mode": "offline", "log_dir": str(tmp_path / "swanlog")}, body, ends=False)
    found = records(tmp_path)
    (curve,) = (record.media for record in found if record.HasField("media"))
    (item,) = curve.value.items
    assert (curve.key, curve.step, item.caption) == ("curve", 3, "seen")
    (file,) = tmp_path.glob("swanlog/run-*/media/image/*.png")
    assert image.open(file).size == (20, 20)
    assert run_pb2.RunState.Name(found[-1].finish.state) == "RUN_STATE_CRASHED"


def test_each_rank_may_have_a_separate_run(train_on_two_ranks, tmp_path):
    train_on_two_ranks("swanlab", {"mode": "offline", "log_dir": str(tmp_path / "swanlog")}, env={})
    runs = [records_in(file) for file in tmp_path.glob("swanlog/run-*/*.swanlab")]
    assert sorted(each.scalar.value.number for run in runs for each in run if each.HasField("scalar")) == [
        0,
        1,
    ]
    assert [run[0].start.group for run in runs] == ["first", "first"]
