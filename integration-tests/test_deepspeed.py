"""DeepSpeed's own engine trains in two processes that `accel launch --use_deepspeed` started on one machine."""

from __future__ import annotations

import json
import sys

import pytest

from accel_state.testing.scripts import run_command

pytestmark = pytest.mark.engine("deepspeed")
# Each rank sees other rows of the same data, so that only a reduction keeps the parameters equal.
TRAIN = """
import json, os, sys
import deepspeed
import torch
from accel_state import PartialState

state = PartialState(cpu=True)
torch.manual_seed(0)
rows = torch.randn(32, 4)
wanted = rows @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
model = torch.nn.Linear(4, 1)
config = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config, dist_init_required=False
)
mine = slice(state.process_index, None, state.num_processes)
losses = []
for _ in range(20):
    loss = torch.nn.functional.mse_loss(engine(rows[mine]), wanted[mine])
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=sys.argv[1] == "3"):
    weight = model.weight.detach().flatten().tolist()
flag = os.environ["ACCELERATE_USE_DEEPSPEED"]
told = {"ranks": state.num_processes, "losses": losses, "weight": weight, "flag": flag}
with open(f"{sys.argv[2]}/{state.process_index}.json", "w") as file:
    json.dump(told, file)
state.destroy_process_group()
"""
FAIL = """
import os, sys
import deepspeed
sys.exit(5 if os.environ["RANK"] == "1" else 0)
"""


@pytest.fixture
def launch(tmp_path):
    def run(body: str, *arguments: str):
        (tmp_path / "train.py").write_text(body)
        command = [
            sys.executable,
            "-m",
            "accel_launch",
            "launch",
            "--cpu",
            "--use_deepspeed",
            "--num_processes=2",
        ]
        environ = {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "hf")}
        return run_command([*command, "train.py", *arguments], cwd=tmp_path, env=environ, timeout_s=300)

    return run


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_two_ranks_train_the_same_model_on_different_rows(launch, tmp_path, stage):
    done = launch(TRAIN, stage, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert (first["ranks"], first["flag"]) == (2, "true")
    assert first["weight"] == second["weight"]
    assert first["losses"] != second["losses"]
    assert first["losses"][-1] < first["losses"][0] / 10
    assert first["weight"] == pytest.approx([1.0, -2.0, 3.0, 0.5], abs=0.5)


def test_the_exit_code_of_the_rank_that_fails_is_the_launchers(launch):
    done = launch(FAIL)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "Rank 1" in done.stderr
