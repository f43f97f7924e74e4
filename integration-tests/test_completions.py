"""jedi, which completes names in IPython and in many editors, knows what users hold after `prepare`."""

from __future__ import annotations

import jedi
import pytest

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader

import accel
from accel import Accelerator

accelerator = Accelerator()
model, optimizer = nn.Linear(1, 1), torch.optim.AdamW([])
train, test = DataLoader([]), DataLoader([])
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
inner = accelerator.unwrap_model(model)
"""
EXPECTED = {
    "accelerator": {
        "prepare",
        "backward",
        "accumulate",
        "save_state",
        "gather_for_metrics",
        "is_main_process",
    },
    "accel.utils": {"set_seed", "gather", "tqdm", "send_to_device"},
    "model": {"parameters", "weight", "state_dict"},
    "optimizer": {"step", "zero_grad", "param_groups", "step_was_skipped"},
    "train": {
        "batch_size",
        "end_of_dataloader",
        "iteration",
        "load_state_dict",
        "remainder",
        "set_epoch",
        "state_dict",
        "total_batch_size",
    },
    "test": {"set_epoch"},
    "schedule": {"get_last_lr"},
    "inner": {"parameters", "weight"},
}


@pytest.mark.parametrize("entry", EXPECTED)
def test_jedi_completes_an_entry_object(entry):
    lines = f"{SCRIPT}{entry}.".splitlines()
    script = jedi.Script("\n".join(lines), environment=jedi.InterpreterEnvironment())  # no process of its own
    names = {one.name for one in script.complete(len(lines), len(lines[-1]))}
    assert names >= EXPECTED[entry]
    if entry == "accelerator":
        assert len([name for name in names if not name.startswith("_")]) >= 117
