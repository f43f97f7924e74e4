"""What workers draw at random, and which epoch they know."""

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from accel_data import prepare_data_loader, skip_first_batches
from accel_ops.random import set_seed
from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")


class Augmented(Dataset):
    """Indices, each with what a worker draws by torch and by Python."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor([index, torch.randint(2**60, ()).item(), random.getrandbits(60)])


def own_generator():
    return {"generator": torch.Generator().manual_seed(5)}


def same_seed():
    set_seed(3)
    return {}


def other_seed_on_each_rank():
    set_seed(3, device_specific=True)
    return {}


def read(randomness, **options):
    """Return the indices and the numbers that this rank reads in two epochs."""
    PartialState(cpu=True)
    settings = randomness()
    loader = prepare_data_loader(DataLoader(Augmented(), batch_size=2, shuffle=True, **settings, **options))
    rows = [row for _ in range(2) for batch in loader for row in batch.tolist()]
    return [row[0] for row in rows], [number for row in rows for number in row[1:]]


@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("randomness", [own_generator, same_seed, other_seed_on_each_rank])
def test_workers_of_different_ranks_draw_different_numbers(world, randomness, is_persistent):
    results = world(2).run(read, randomness, num_workers=2, persistent_workers=is_persistent)
    (_, first), (_, second) = results
    assert len({*first, *second}) == 2 * 24
    assert results == world(2).run(read, randomness, num_workers=2, persistent_workers=is_persistent)


def test_the_order_is_that_of_one_rank_and_of_no_workers(world):
    ((alone, numbers),) = world(1).run(read, own_generator, num_workers=2)
    together = world(2).run(read, own_generator, num_workers=2)
    assert [indices for indices, _ in together] == [
        indices for indices, _ in world(2).run(read, own_generator)
    ]
    assert sorted(alone) == sorted(together[0][0] + together[1][0])
    in_turn = torch.stack([torch.tensor(indices).view(-1, 2) for indices, _ in together], dim=1)
    assert alone == in_turn.flatten().tolist()
    plain = DataLoader(Augmented(), batch_size=2, shuffle=True, num_workers=2, **own_generator())
    rows = [row for _ in range(2) for batch in plain for row in batch.tolist()]
    assert (alone, numbers) == ([row[0] for row in rows], [number for row in rows for number in row[1:]])


def rest_of_an_epoch():
    PartialState(cpu=True)
    options = {"batch_size": 1, "shuffle": True, "num_workers": 2}
    unbroken = [
        row
        for batch in prepare_data_loader(DataLoader(Augmented(), **own_generator(), **options))
        for row in batch.tolist()
    ]
    loader = prepare_data_loader(DataLoader(Augmented(), **own_generator(), **options))
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    resumed = prepare_data_loader(DataLoader(Augmented(), **own_generator(), **options))
    resumed.load_state_dict(state)
    rest = [row for batch in resumed for row in batch.tolist()]
    skipped = skip_first_batches(
        prepare_data_loader(DataLoader(Augmented(), **own_generator(), **options)), 1
    )
    assert (
        [row[0] for row in unbroken[1:]]
        == [row[0] for row in rest]
        == [batch[0, 0].item() for batch in skipped]
    )
    return [number for row in rest for number in row[1:]]


def test_workers_of_a_resumed_loader_draw_different_numbers_too(world):
    first, second = world(2).run(rest_of_an_epoch)
    assert len({*first, *second}) == 20


class ShuffledStream(IterableDataset):
    """Draws its order in the worker that reads it."""

    def __iter__(self):
        return iter(torch.randperm(12))


def read_stream():
    PartialState(cpu=True)
    loader = DataLoader(ShuffledStream(), batch_size=2, num_workers=1, **own_generator())
    return torch.cat(list(prepare_data_loader(loader, dispatch_batches=False))).tolist()


def test_a_stream_that_the_ranks_share_is_drawn_alike_by_their_workers(world):
    first, second = world(2).run(read_stream)
    assert sorted(first + second) == list(range(12))


class Epochs(Dataset):
    """Samples that show the epoch, and whether the worker has read before."""

    def __init__(self):
        self.epoch = 0

    def __len__(self):
        return 2

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __getitem__(self, index):
        return torch.tensor([int(self.epoch), get_worker_info().seed])


class SharedEpochs(Epochs):
    """As those of the package `datasets`."""

    def __init__(self):
        self.epoch = torch.tensor(0).share_memory_()

    def set_epoch(self, epoch):
        self.epoch.fill_(epoch)


@pytest.mark.parametrize(("dataset", "num_starts"), [(Epochs(), 3), (SharedEpochs(), 1)])
def test_persistent_workers_read_the_epoch_that_is_set(dataset, num_starts):
    loader = prepare_data_loader(DataLoader(dataset, batch_size=2, num_workers=1, persistent_workers=True))
    rows = [batch[0].tolist() for _ in range(3) for batch in loader]
    assert [epoch for epoch, _ in rows] == [0, 1, 2]
    assert len({seed for _, seed in rows}) == num_starts


def test_persistent_workers_of_an_epoch_that_is_chosen_read_it():
    loader = prepare_data_loader(DataLoader(Epochs(), batch_size=2, num_workers=1, persistent_workers=True))
    seen = []
    for epoch in (4, 4, 2):
        loader.set_epoch(epoch)
        seen += [batch[0, 0].item() for batch in loader]
    assert seen == [4, 4, 2]
