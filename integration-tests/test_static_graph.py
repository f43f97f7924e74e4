import pytest
import torch
from torch import nn

from accel import Accelerator, DistributedDataParallelKwargs

pytestmark = pytest.mark.engine("long")


def gradient_after_no_sync():
    ddp = DistributedDataParallelKwargs(static_graph=True)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ddp])
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    rank = accelerator.process_index
    with accelerator.no_sync(model):
        accelerator.backward(model(torch.full((1, 1), 1.0 + rank)).sum())
    accelerator.backward(model(torch.full((1, 1), 10.0 + rank)).sum())
    return accelerator.unwrap_model(model).weight.grad.item()


@pytest.mark.usefixtures("fresh_state")
def test_a_static_graph_may_begin_with_no_sync(world):
    assert world(2).run(gradient_after_no_sync) == [12.0, 12.0]
