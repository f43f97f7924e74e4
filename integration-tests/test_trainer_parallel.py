"""The Trainer of transformers trains models that it shards as one process does: ``test_trainer_parallel.py --all``."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from trainer_beside import SCRIPTS, found_by

pytestmark = pytest.mark.engine("libraries")

SCRIPT = SCRIPTS / "trainer_parallel.py"
ALONE = ("plain", "accumulated", "bf16", "adapters")
SAMPLE = ("tp auto", "fsdp, accumulated", "fsdp, adapters", "cp")
ON_TWO = (
    "tp", "tp, accumulated", "tp, bf16", "fsdp", "fsdp, bf16", "cp, accumulated", "cp, resumed", "dp_shard",
    "dp_shard, resumed", "dp_replicate",
)  # fmt: skip
ON_FOUR = (
    "fsdp and tp", "fsdp and tp, accumulated", "hsdp", "dp_shard and tp", "dp_shard and cp",
)  # fmt: skip


def check(folder: Path, names: tuple[str, ...], *, num_processes: int) -> None:
    """Compare losses, norms, evaluation and weights of rows with those of one process."""
    alone = found_by(ALONE, folder / "alone", num_processes=1, script=SCRIPT)
    for name, found in found_by(names, folder / "found", num_processes=num_processes, script=SCRIPT).items():
        assert "error" not in found, (name, found)
        expected = alone[next((one for one in ALONE if one in name), "plain")]
        tolerance = 0.02 if "bf16" in name else 1e-5
        for ours, theirs in zip(found["history"], expected["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=tolerance), name
        assert found["weights"] == pytest.approx(expected["weights"], rel=tolerance), name
        if found["more"]:
            assert found["more"] == [entry[0] for entry in found["history"] if len(entry) == 2], name


def test_the_trainer_trains_sharded_models_as_one_process(tmp_path):
    check(tmp_path, SAMPLE, num_processes=2)


if __name__ == "__main__":
    for num_processes, names in ((2, SAMPLE + ON_TWO), (4, ON_FOUR)):
        for name in names:
            with TemporaryDirectory() as folder:
                check(Path(folder), (name,), num_processes=num_processes)
            sys.stdout.write(f"{num_processes} processes: {name}: as one process\n")
