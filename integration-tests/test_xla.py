"""The real torch_xla, on one device: a CPU that PJRT drives."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tools.harness.scripts import run_command, run_script

pytestmark = pytest.mark.engine("xla")
DEVICE = """
import torch
from accel_state.devices import device_backend
from accel_state.topology import Topology

backend = device_backend("xla")
place = backend.place(Topology())
told = {"why_not": backend.unavailable_reason(check_device=True), "count": backend.count(), "device": place.type}
told["alone"] = backend.refine_topology(Topology()) == Topology()
backend.seed_all(12)
state = backend.get_rng_state()
first = torch.rand(3, device=place).tolist()
backend.set_rng_state(state)
told["repeats"] = torch.rand(3, device=place).tolist() == first
told["sum"] = (torch.ones(2, 2, device=place) @ torch.ones(2, 2, device=place)).sum().item()
backend.empty_cache()
"""
STATE = """
import torch
from accel_state import PartialState

state = PartialState()
told = {
    "device": state.device.type,
    "distributed_type": str(state.distributed_type),
    "ranks": [state.process_index, state.num_processes],
    "main": state.is_main_process,
}
state.wait_for_everyone()
with state.split_between_processes([1, 2, 3]) as part:
    told["part"] = part
model = torch.nn.Linear(4, 1).to(state.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(0)
rows = torch.randn(32, 4).to(state.device)
losses = []
for _ in range(20):
    loss = (model(rows) - rows.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
told["trains"] = losses[-1] < losses[0] / 10
"""
SPAWNED = """
import json, os, sys
import torch_xla

def train():
    with open(sys.argv[1], "w") as file:
        json.dump({"device": torch_xla.device().type, "arguments": sys.argv[1:]}, file)
"""

FROM_A_NOTEBOOK = """
import sys
import torch
from accel import Accelerator, debug_launcher, notebook_launcher

def train(folder, steps):
    accelerator = Accelerator()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.ones(16, 4), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    seen = 0
    for rows in loader:
        accelerator.backward(model(rows).pow(2).mean())
        optimizer.step()
        optimizer.zero_grad()
        seen += len(rows)
    with open(f"{folder}/{accelerator.process_index}.txt", "w") as file:
        file.write(f"{accelerator.device.type} {accelerator.num_processes} {seen} {steps}")
    accelerator.end_training()

"""


@pytest.fixture
def run(tmp_path):
    """Run a script that fills the dict ``told``, and return the dict."""

    def run_body(body: str) -> dict[str, object]:
        script = tmp_path / "script.py"
        script.write_text(f"{body}\nimport json\nprint(json.dumps(told))\n")
        done = run_script(script, cwd=tmp_path, timeout_s=300, preload=("torch_xla",))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run_body


def test_the_device_file_speaks_the_language_of_the_real_package(run):
    assert run(DEVICE) == {
        "why_not": None, "count": 1, "device": "xla", "alone": True, "repeats": True, "sum": 8.0,
    }  # fmt: skip


def test_the_state_is_on_the_device_and_a_model_trains_there(run):
    assert run(STATE) == {
        "device": "xla", "distributed_type": "NO", "ranks": [0, 1], "main": True, "part": [1, 2, 3], "trains": True,
    }  # fmt: skip


def test_a_launch_calls_the_function_of_the_script(tmp_path):
    (tmp_path / "train.py").write_text(SPAWNED)
    told = tmp_path / "told.json"
    command = [sys.executable, "-m", "accel_launch", "launch", "--tpu", "--num_processes=1"]
    command += ["--main_training_function=train", "train.py", str(told), "--lr", "1"]
    done = run_command(command, cwd=tmp_path, env={"HF_HOME": str(tmp_path / "hf")}, timeout_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(told.read_text()) == {"device": "xla", "arguments": [str(told), "--lr", "1"]}
    assert os.environ["PJRT_DEVICE"] == "CPU"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("notebook_launcher(train, (folder, 7), num_processes=1)", ["xla 1 16 7"]),
        ("debug_launcher(train, (folder, 7))", ["cpu 2 8 7", "cpu 2 8 7"]),
    ],
    ids=["notebook", "debug"],
)
def test_functions_are_started_on_devices_and_tried_out_on_the_cpu(run, tmp_path, call, expected):
    body = f"{FROM_A_NOTEBOOK}folder = {str(tmp_path)!r}\n{call}\ntold = {{}}\n"
    run(body)
    assert [file.read_text() for file in sorted(tmp_path.glob("?.txt"))] == expected
