import pytest
from torch.utils.data import DataLoader

from accel import Accelerator
from accel.prepared import PreparedLoaders

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_each_loader_is_there_once_while_somebody_holds_it():
    loaders = PreparedLoaders()
    first, second = DataLoader([1]), DataLoader([2])
    for loader in (first, second, first):
        loaders.add(loader)
    assert (len(loaders), loaders[0], loaders[1:], list(loaders)) == (2, first, [second], [first, second])
    del loader, first
    assert list(loaders) == [second]
    loaders.clear()
    assert len(loaders) == 0


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_run_that_prepares_a_loader_for_each_epoch_can_be_resumed(tmp_path, num_workers):
    accelerator = Accelerator(cpu=True)
    for epoch in range(3):
        loader = accelerator.prepare(DataLoader(range(4), num_workers=num_workers))
        for batch in loader:
            if epoch == 2 and batch.item() == 1:
                accelerator.save_state(tmp_path)
                break
    accelerator.free_memory()
    loader = accelerator.prepare(DataLoader(range(4), num_workers=num_workers))
    accelerator.load_state(tmp_path, restore_loaders=True)
    assert [batch.item() for batch in loader] == [2, 3]


def test_a_loader_that_is_prepared_twice_is_saved_once(tmp_path):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(range(4)))
    assert accelerator.prepare_data_loader(loader) is loader
    accelerator.save_state(tmp_path)
    assert len(list(tmp_path.glob("dl_state_dict*"))) == 1
