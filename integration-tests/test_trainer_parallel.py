"""The Trainer of transformers trains models that it shards as one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
from both_sides import found_by

pytestmark = pytest.mark.engine("libraries")

SCRIPT = "trainer_parallel"
ALONE = ("plain", "accumulated", "bf16", "adapters")
SAMPLE = ("tp auto", "fsdp, accumulated", "fsdp, adapters", "cp")


def check(folder: Path, names: tuple[str, ...], *, num_processes: int) -> None:
    """Compare losses, norms, evaluation and weights of rows with those of one process."""
    alone = found_by(SCRIPT, folder / "alone", *ALONE)
    together = found_by(SCRIPT, folder / "found", *names, num_processes=num_processes, timeout_s=3000)
    assert set(together) == set(names)
    for name, found in together.items():
        assert "error" not in found, (name, found)
        expected = alone[next((one for one in ALONE if one in name), "plain")]
        tolerance = 0.02 if "bf16" in name else 1e-5
        for ours, theirs in zip(found["history"], expected["history"], strict=True):
            assert ours == pytest.approx(theirs, rel=tolerance), name
        assert found["weights"] == pytest.approx(expected["weights"], rel=tolerance), name


def test_the_trainer_trains_sharded_models_as_one_process(tmp_path):
    check(tmp_path, SAMPLE, num_processes=2)
