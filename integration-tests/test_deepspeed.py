"""DeepSpeed's own engine trains in two processes that `accel launch --use_deepspeed` started on one machine."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from deepspeed_launch import launch as launch_script

pytestmark = pytest.mark.engine("deepspeed")
DATA = """
import torch

torch.manual_seed(0)
rows = torch.randn(32, 4)
wanted = rows @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]])
model = torch.nn.Linear(4, 1)
"""
TRAIN = """
import json, os, sys
import deepspeed
from accel_state import PartialState

state = PartialState(cpu=True)
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_clipping": 0.0,  # left out, it is 1.0
    "zero_optimization": {"stage": int(sys.argv[1])},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), config=config, dist_init_required=False
)
mine = slice(state.process_index, None, state.num_processes)
for _ in range(5):
    engine.backward(torch.nn.functional.mse_loss(engine(rows[mine]), wanted[mine]))
    engine.step()
with deepspeed.zero.GatheredParameters(list(model.parameters()), enabled=sys.argv[1] == "3"):
    weight = model.weight.detach().flatten().tolist()
flag = os.environ["ACCELERATE_USE_DEEPSPEED"]
told = {"ranks": state.num_processes, "weight": weight, "flag": flag}
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
        return launch_script("train.py", tmp_path, *arguments, flags=["--use_deepspeed"])

    return run


def weight_of_one_process() -> list[float]:
    """Return what plain PyTorch comes to with all rows in one process."""
    place: dict[str, Any] = {}
    exec(DATA, place)
    model, optimizer = place["model"], torch.optim.SGD(place["model"].parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(place["rows"]), place["wanted"]).backward()
        optimizer.step()
    return model.weight.detach().flatten().tolist()


@pytest.mark.parametrize("stage", ["0", "2", "3"])
def test_two_ranks_with_half_the_rows_each_train_as_one_process_does(launch, tmp_path, stage):
    done = launch(DATA + TRAIN, stage, str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in (0, 1):
        told = json.loads((tmp_path / f"{rank}.json").read_text())
        assert (told["ranks"], told["flag"]) == (2, "true")
        # The mean of two means adds in another order.
        assert told["weight"] == pytest.approx(weight_of_one_process(), abs=1e-5)


def test_the_exit_code_of_the_rank_that_fails_is_the_launchers(launch):
    done = launch(FAIL)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "Rank 1" in done.stderr
