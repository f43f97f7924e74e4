"""Loaders where the script has set a default device for new tensors; `meta` stands for an accelerator."""

import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import prepare_data_loader
from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


def loader(**options):
    generator = torch.Generator().manual_seed(5)
    data = DataLoader(torch.arange(12), batch_size=2, shuffle=True, generator=generator)
    return prepare_data_loader(data, **options)


def test_a_state_is_loaded_to_the_cpu():
    expected = torch.cat(list(loader())).tolist()
    begun, resumed = loader(), loader()
    next(iter(begun))
    with torch.device("meta"):
        resumed.load_state_dict(begun.state_dict())
    assert torch.cat(list(resumed)).tolist() == expected[2:]


def dispatched():
    PartialState(cpu=True)
    batches = iter(loader(dispatch_batches=True))
    first = next(batches)
    with torch.device("meta"):
        return torch.cat([first, *batches]).tolist()


def test_batches_are_dispatched_by_way_of_the_cpu(world):
    first, second = world(2).run(dispatched)
    assert sorted(first + second) == list(range(12))
