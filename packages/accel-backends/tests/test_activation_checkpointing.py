"""What is computed again in the backward pass, and that its gradients are the same."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from accel_backends import FullyShardedDataParallelPlugin
from accel_backends.activation_checkpointing import CheckpointedForward, checkpoint_units
from accel_state.errors import ConfigError
from tools.harness.models import make_batches, make_model


class CountProducts(TorchDispatchMode):
    """Counts matrix products."""

    def __init__(self):
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.number += operation in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return operation(*args, **(kwargs or {}))


def gradients_of(**options):
    model = make_model("dropout")
    if options:
        del options["is_on"]
        checkpoint_units(list(model.blocks), **options)
    torch.manual_seed(1)
    loss = model(make_batches(1)[0]).square().mean()
    with CountProducts() as counted:
        loss.backward()
    return [parameter.grad for parameter in model.parameters()], counted.number


@pytest.mark.filterwarnings("error")  # newer releases of torch warn if they are not told what to offload
@pytest.mark.parametrize(
    "options",
    [{}, {"is_selective": True}, {"offloads_inputs": True}, {"is_selective": True, "offloads_inputs": True}],
)
def test_gradients_are_the_same_bit_for_bit(options):
    expected, _ = gradients_of()
    gradients, _ = gradients_of(is_on=True, **options)
    assert all(map(torch.equal, gradients, expected))


def test_selective_checkpointing_computes_every_second_product_again():
    _, plain = gradients_of()
    _, whole = gradients_of(is_on=True)
    _, selective = gradients_of(is_on=True, is_selective=True)
    # Three blocks of two products each; of those of the backward pass none is saved.
    assert (whole - plain, selective - plain) == (6, 3)


def test_names_signature_and_results_stay():
    model = make_model("odd")
    names, rows = list(model.state_dict()), make_batches(1)[0]
    expected = model(rows)
    checkpoint_units(list(model.blocks))
    checkpoint_units(list(model.blocks))
    assert type(model.blocks[0].forward) is CheckpointedForward
    assert not isinstance(model.blocks[0].forward.original, CheckpointedForward)
    assert list(model.state_dict()) == names
    assert torch.equal(model(rows), expected)
    with torch.inference_mode():
        assert torch.equal(model(rows), expected)


def test_checkpointed_modules_can_be_copied_and_pickled():
    block = nn.Linear(2, 2)
    checkpoint_units([block])
    for other in (copy.deepcopy(block), pickle.loads(pickle.dumps(block))):
        assert torch.equal(other(torch.ones(1, 2)), block(torch.ones(1, 2)))


def test_what_would_have_no_effect_is_refused(fresh_state):
    with pytest.raises(ConfigError, match="has no effect on this model"):
        checkpoint_units([])
    with pytest.raises(ConfigError, match="without `activation_checkpointing`"):
        FullyShardedDataParallelPlugin(fsdp_version=2, selective_checkpointing=True)
