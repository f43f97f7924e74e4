"""The Trainer of transformers trains by a config file of DeepSpeed's, as it is, in one and in two processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from tools.harness.scripts import run_command

pytestmark = pytest.mark.engine("deepspeed")

SCRIPT = Path(__file__).with_name("libraries") / "deepspeed_trainer.py"
AUTO = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
WARMUP = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps"), "auto")
ZERO3 = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16},
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {**AUTO, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {**WARMUP, "warmup_type": "linear"}},
    "zero_optimization": {
        "stage": 3,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": False,
}
"""What transformers' guide gives for ZeRO 3, with an optimizer and a warm-up that plain PyTorch has too."""


def run(folder: Path, *, num_processes: int) -> dict[str, list[dict[str, float]]]:
    """Train without DeepSpeed, with it, and from the middle of that; return what each Trainer has logged."""
    begin = (
        ["-m", "accel.drop_in"]
        if num_processes == 1
        else ["-m", "accel_launch", "launch", "--cpu", f"--num_processes={num_processes}", "--drop_in"]
    )
    done = run_command(
        [sys.executable, *begin, str(SCRIPT), str(folder), str(8 // num_processes)],
        cwd=folder,
        env={"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        timeout_s=400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("num_processes", [1, 2])
def test_the_trainer_trains_and_resumes_by_a_config_file_as_without_it(tmp_path, num_processes):
    from libraries import tiny
    from transformers import LlamaForCausalLM

    tiny.make_model().save_pretrained(tmp_path / "start")
    (tmp_path / "zero3.json").write_text(json.dumps(ZERO3))
    found = run(tmp_path, num_processes=num_processes)
    assert found["resumed"] == found["whole"]  # to the last bit
    for ours, plain in zip(found["whole"], found["plain"], strict=True):
        assert ours == pytest.approx(plain, rel=1e-5)
    states = {
        name: LlamaForCausalLM.from_pretrained(tmp_path / name / "saved").state_dict()
        for name in ("plain", "resumed")
    }
    torch.testing.assert_close(states["resumed"], states["plain"], rtol=0, atol=1e-5)
