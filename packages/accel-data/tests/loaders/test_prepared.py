import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import prepare_data_loader

pytestmark = pytest.mark.usefixtures("fresh_state")


def loader():
    return prepare_data_loader(DataLoader(torch.arange(10), batch_size=2))


def test_a_state_may_be_of_a_position_that_comes_from_elsewhere():
    one = loader()
    one.load_state_dict(one.state_after(3))
    assert [batch.tolist() for batch in one] == [[6, 7], [8, 9]]


def test_a_loader_shares_its_progress_with_what_was_made_of_it_by_skipping():
    one = loader()
    assert one.shares_progress_with(one)
    assert one.shares_progress_with(one.skipping(2))
    assert one.skipping(2).shares_progress_with(one)
    assert not one.shares_progress_with(loader())
    assert not one.shares_progress_with(DataLoader(torch.arange(10)))
