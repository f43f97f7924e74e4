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


def test_a_loader_is_under_way_while_it_or_what_skips_its_batches_is_read():
    one, other = loader(), loader()
    for read in (one, one.skipping(2)):
        assert not one.is_under_way
        for _ in read:
            assert one.is_under_way
            assert one.skipping(1).is_under_way
            assert not other.is_under_way
    assert not one.is_under_way


def test_a_loop_within_another_does_not_end_it():
    outer, inner = loader(), loader()
    for _ in outer:
        for _ in inner:
            assert (outer.is_under_way, inner.is_under_way) == (True, True)
            break
        assert (outer.is_under_way, inner.is_under_way) == (True, False)


def test_a_loader_is_under_way_as_long_as_the_iterator_of_its_latest_pass_is_kept():
    one = loader()
    first = iter(one)
    next(first)
    second = iter(one)
    next(second)
    first.close()
    assert one.is_under_way
    del second
    assert not one.is_under_way


def test_a_loader_that_loads_a_state_in_its_loop_stays_under_way():
    one = loader()
    state = one.state_after(2)
    for _ in one:
        one.load_state_dict(state)
        assert (one.is_under_way, one.num_batches_read) == (True, 2)
        break


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
