"""A checkpoint that was written before accel-checkpoint was its own package is loaded, with all that is in it."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")

FOLDER = Path(__file__).parent / "earlier_files" / "within_an_accumulation"


def test_an_earlier_checkpoint_continues_as_it_did_then():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    rows = [torch.tensor([float(i), 1.0]) for i in range(8)]
    loader = DataLoader(rows, batch_size=2, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    accelerator.load_state(FOLDER, restore_loaders=True, verify=True)
    read = []
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        read.append(batch[:, 0].tolist())
    # What the release that wrote it printed.
    assert read == [[5, 2], [4, 0], [7, 6], [3, 1]]
    torch.testing.assert_close(model.weight.data, torch.tensor([[0.1500392109155655, -0.5212499499320984]]))
    torch.testing.assert_close(model.bias.data, torch.tensor([-0.34661397337913513]))
    assert torch.rand(1).item() == 0.4387779235839844
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
