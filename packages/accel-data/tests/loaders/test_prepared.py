import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import prepare_data_loader
from accel_state import GradientState, PartialState

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


class Epochs(torch.utils.data.SequentialSampler):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch


def test_the_epoch_can_be_set_for_the_next_pass():
    sampler = Epochs(range(4))
    one = prepare_data_loader(DataLoader(torch.arange(4), sampler=sampler))
    one.iteration = 5
    list(one)
    assert (sampler.epoch, one.iteration) == (5, 6)
    assert one.gradient_state is GradientState()


def test_another_batch_size_holds_from_the_next_pass_on():
    one = loader()
    one.batch_sampler.batch_size = 4
    assert [batch.tolist() for batch in one] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def rows_if_one_process_is_set(dispatch):
    state = PartialState()
    state.num_processes = 1
    loader = prepare_data_loader(DataLoader(torch.arange(3)), dispatch_batches=dispatch)
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("dispatch", [False, True])
def test_a_script_may_set_one_process_to_read_everything_on_each(world, dispatch):
    assert world(2).run(rows_if_one_process_is_set, dispatch) == [[[0], [1], [2]]] * 2
