from pathlib import Path

import pytest
import torch

from tools.bench.offloaded_generation import Setting, measured, offloaded, resident, write_checkpoint

TINY = Setting("cpu", width=32, num_layers=8, num_tokens=2, dtype=torch.float32)


@pytest.mark.parametrize("variant", ["bus", "resident", "accel_bigmodel"])
def test_what_is_measured_on_a_gpu_runs_on_a_cpu_too(tmp_path, variant):
    assert measured(variant, TINY, tmp_path) > 0


def test_no_more_than_its_share_is_in_memory_and_the_result_is_that_of_the_resident_model(tmp_path):
    checkpoint = tmp_path / "checkpoint"
    write_checkpoint(TINY, checkpoint)
    model = offloaded("accel_bigmodel", TINY, checkpoint, tmp_path)
    in_memory = sum(p.nbytes for p in model.parameters() if not p.is_meta)
    assert 0 < in_memory <= TINY.model_bytes // 4
    x = torch.ones(1, TINY.width)
    with torch.inference_mode():
        assert torch.equal(model(x), resident(TINY, checkpoint)(x))


def test_on_an_accelerator_the_rest_goes_to_the_memory_of_the_host():
    limits = Setting("cuda", width=32, num_layers=8, num_tokens=2, dtype=torch.bfloat16).limits()
    assert limits == {0: 8 * 32 * 32 * 2 // 4, "cpu": 2 * 8 * 32 * 32 * 2}


def test_the_checkpoint_is_written_once(tmp_path):
    write_checkpoint(TINY, tmp_path)
    written = {path: path.stat().st_mtime_ns for path in Path(tmp_path).iterdir()}
    write_checkpoint(TINY, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in Path(tmp_path).iterdir()} == written
