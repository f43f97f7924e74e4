from __future__ import annotations

from pathlib import Path

import pytest

from accel_state.availability import why_not

pytestmark = pytest.mark.skipif(
    why_not("swanlab") is not None, reason="needs the extra accel-trackers[swanlab]"
)


def records(folder: Path) -> list:
    """Read the file of an offline run with SwanLab's own reader, as `swanlab sync` does."""
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    (file,) = folder.glob("swanlog/run-*/*.swanlab")
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
