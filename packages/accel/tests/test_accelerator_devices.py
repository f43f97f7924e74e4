"""A run on the devices of each vendor, behind a stand-in that has the functions that the vendor documents.

torch makes no tensors there, so the model stays on the CPU; all that the run requires of the device goes through.
"""

import json
from functools import partial

import pytest

from tools.harness.scripts import run_script

RUN = """
import json, sys
import torch
import torch.distributed as dist
from torch import nn

name, folder = sys.argv[1:]
if name not in ("hpu", "mps", "xpu"):
    torch.utils.rename_privateuse1_backend(name)  # what the vendor's package does

from accel import Accelerator
from accel.utils import get_max_memory, set_seed
from accel_state.devices import device_backend
from accel_state.errors import ConfigError, NotAvailableError
from tools.harness.vendor_modules import vendor_module

def over_gloo(store, rank, size, timeout):
    return dist.ProcessGroupGloo(store, rank, size, timeout)

with vendor_module(name) as module:
    backend = device_backend(name)
    if backend.collective_backend == "hccl":
        dist.Backend.register_backend("hccl", over_gloo, devices=[name, "cpu"])
    accelerator = Accelerator(device_placement=False, mixed_precision="fp16")
    found = {"device": str(accelerator.device), "type": str(accelerator.distributed_type)}
    found["group"] = dist.get_backend() if dist.is_initialized() else None
    accelerator.wait_for_everyone()

    del module.calls[:]
    set_seed(3)
    found["seeding"] = sorted(set(module.calls))
    model = nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with accelerator.autocast():
        found["autocast"] = torch.is_autocast_enabled(name), str(torch.get_autocast_dtype(name))
    found["scaler"] = accelerator.scaler._device
    accelerator.backward(model(torch.ones(3, 2)).sum())
    optimizer.step()
    found["skipped"] = optimizer.step_was_skipped

    before = backend.get_rng_state()
    accelerator.save_state(folder)
    set_seed(4)
    accelerator.load_state(folder)
    found["restored"] = torch.equal(backend.get_rng_state(), before)
    try:
        found["memory"] = [size for key, size in get_max_memory().items() if key != "cpu"]
    except NotAvailableError as error:
        found["memory"] = str(error)
    del module.calls[:]
    accelerator.free_memory()
    found["emptied"] = "empty_cache" in module.calls
    print(json.dumps(found))
    accelerator.end_training()
"""


def run_on(folder, *, name, num_processes=1):
    script = folder / "run.py"
    script.write_text(RUN)
    ran = run_script(
        script, name, str(folder / "state"), num_processes=num_processes, timeout_s=60, preload=("accel",)
    )
    assert ran.returncode == 0, ran.stderr
    return name, [json.loads(line) for line in ran.stdout.splitlines()]


VENDORS = ["hpu", "mlu", "mps", "musa", "neuron", "npu", "sdaa", "xpu"]


@pytest.mark.parametrize(
    "outcome", [partial(run_on, name=name) for name in VENDORS], ids=VENDORS, indirect=True
)
def test_one_process_runs_on_the_vendors_device_from_its_choice_to_its_end(outcome):
    name, (found,) = outcome
    free = {"neuron": None, "mps": [12 * 2**30]}.get(name, [12 * 2**30] * 2)
    memory = found.pop("memory")
    assert memory == free or (free is None and "`torch.neuron` does not report" in memory)
    assert found == {
        "device": "hpu" if name == "hpu" else f"{name}:0",
        "type": "NO",
        "group": None,
        "seeding": ["manual_seed"] if name == "mps" else ["manual_seed_all"],
        "autocast": [True, "torch.float16"],
        "scaler": name,
        "skipped": False,
        "restored": True,
        "emptied": name != "hpu",
    }


@pytest.mark.parametrize(
    "outcome", [partial(run_on, name="hpu", num_processes=2)], ids=["hpu"], indirect=True
)
def test_several_processes_meet_by_the_collectives_of_the_vendor(outcome):
    _, found = outcome
    assert [(one["device"], one["type"], one["group"]) for one in found] == [("hpu", "MULTI_HPU", "hccl")] * 2
    assert all(one["restored"] for one in found)
