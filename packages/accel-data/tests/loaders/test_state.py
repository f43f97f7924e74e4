import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import prepare_data_loader
from accel_data.loaders.state import load_into, to_file
from accel_state.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("fresh_state")

WITHOUT_WORKERS = {"_num_yielded": 2, "_sampler_iter_yielded": 2, "_iterator_finished": False}
WITH_WORKERS = {"_snapshot": {"_snapshot_step": 1}, "_steps_since_snapshot": 1, "_iterator_finished": False}


def loader():
    return prepare_data_loader(DataLoader(torch.arange(10), batch_size=2))


def rest(one):
    return [batch.tolist() for batch in one]


def test_a_pass_under_way_continues():
    first = loader()
    begun = iter(first)
    next(begun)
    content = to_file(first)
    second = loader()
    load_into(second, content, position=True, file_name="dl_state_dict.bin")
    assert rest(second) == rest(begun)
    assert rest(second) == rest(loader())


@pytest.mark.parametrize("content", [WITHOUT_WORKERS, WITH_WORKERS])
def test_the_position_that_torchdata_wrote_is_gone_to(content):
    one = loader()
    load_into(one, content, position=True, file_name="dl_state_dict.bin")
    assert rest(one) == [[4, 5], [6, 7], [8, 9]]
    assert len(rest(one)) == 5


def test_a_pass_that_torchdata_had_finished_is_not_resumed():
    one = loader()
    load_into(
        one, {**WITHOUT_WORKERS, "_iterator_finished": True}, position=True, file_name="dl_state_dict.bin"
    )
    assert len(rest(one)) == 5


@pytest.mark.parametrize(("is_under_way", "num_batches"), [(True, 1), (False, 0)])
def test_torchdata_finds_its_numbers(is_under_way, num_batches):
    one = loader()
    begun = iter(one)
    next(begun)
    if not is_under_way:
        begun.close()
    content = to_file(one)
    assert content["_num_yielded"] == content["_sampler_iter_yielded"] == num_batches


@pytest.mark.parametrize("content", [[], {}, {"_num_yielded": "2"}, {"_snapshot": {}}])
def test_unknown_names_are_refused_with_a_hint(content):
    with pytest.raises(CheckpointError, match=r"dl_state_dict\.bin"):
        load_into(loader(), content, position=True, file_name="dl_state_dict.bin")


class Counter:
    is_under_way = True

    def __init__(self):
        self.value = 3

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state, *, position):
        self.value = state["value"] if position else 0


def test_a_loader_of_another_kind_keeps_its_own_state():
    content = to_file(Counter())
    other = Counter()
    other.value = 9
    load_into(other, content, position=True, file_name="dl_state_dict.bin")
    assert other.value == 3
    with pytest.raises(CheckpointError, match="neither by this package nor by torchdata"):
        load_into(other, WITHOUT_WORKERS, position=True, file_name="dl_state_dict.bin")
