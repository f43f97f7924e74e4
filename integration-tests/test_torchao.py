"""Models with quantised weights and 8-bit optimizers of torchao, through the Accelerator and its checkpoints."""

import pytest
import torch
from torch import nn

from accel import Accelerator
from accel_state.errors import CheckpointError

pytest.importorskip("torchao", reason="needs torchao")

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.usefixtures("fresh_state"),
    pytest.mark.filterwarnings("ignore"),
]
INPUTS = torch.linspace(-1, 1, 4 * 64).reshape(4, 64)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128, bias=False), nn.ReLU(), nn.Linear(128, 64))


def weights(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("blocking", [True, False])
def test_an_8_bit_optimizer_continues_where_its_checkpoint_was_written(tmp_path, model, blocking):
    from torchao.optim import AdamW8bit

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, AdamW8bit(model.parameters(), lr=0.01))

    def step():
        accelerator.backward(model(INPUTS).pow(2).mean())
        with torch.compiler.set_stance(
            "force_eager"
        ):  # torchao compiles its steps, for longer than this test runs
            optimizer.step()
        optimizer.zero_grad()

    step()
    handle = accelerator.save_state(tmp_path / "a", blocking=blocking)
    step()
    step()
    wanted = weights(model)
    if not blocking:
        handle.wait()
    accelerator.load_state(tmp_path / "a")
    states = {type(value).__name__ for value in optimizer.state_dict()["state"][0].values()}
    assert "OptimState8bit" in states
    step()
    step()
    assert all(map(torch.equal, weights(model), wanted))


def test_quantised_weights_stay_frozen_and_quantised_in_a_checkpoint(tmp_path, model):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig(), filter_fn=lambda module, name: name == "0")
    quantised = type(model[0].weight)
    assert quantised is not nn.Parameter
    model[0].weight.requires_grad_(False)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model[2].parameters(), lr=0.1))
    accelerator.backward(model(INPUTS).pow(2).mean())
    optimizer.step()
    with torch.no_grad():
        wanted = model(INPUTS)
    with pytest.raises(CheckpointError, match=r"`0.weight` is a Int8Tensor.*pass `safe_serialization=False`"):
        accelerator.save_state(tmp_path / "safe")
    accelerator.save_state(tmp_path / "a", safe_serialization=False)
    with torch.no_grad():
        model[2].weight.zero_()
        accelerator.load_state(tmp_path / "a")
        assert torch.equal(model(INPUTS), wanted)
    assert type(model[0].weight) is quantised
