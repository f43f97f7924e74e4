import pytest
import torch
from torch import nn

from accel.checkpointing import load_accelerator_state, save_accelerator_state
from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


@pytest.fixture(autouse=True)
def process(fresh_state):
    PartialState(cpu=True)


def test_states_that_the_caller_passes_are_saved_and_loaded(tmp_path):
    def build(seed):
        torch.manual_seed(seed)
        model = nn.Linear(2, 2)
        return model, torch.optim.SGD(model.parameters(), lr=0.1 + seed)

    model, optimizer = build(0)
    assert (
        save_accelerator_state(tmp_path / "a", [model.state_dict()], [optimizer], [], [], 0, 7)
        == tmp_path / "a"
    )
    drawn = torch.rand(2)
    other, second = build(1)
    assert load_accelerator_state(tmp_path / "a", [other], [second], [], [], 0) == {"step": 7}
    assert torch.equal(torch.rand(2), drawn)
    assert torch.equal(other.weight, model.weight)
    assert second.param_groups[0]["lr"] == 0.1
