import pytest
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from accel import Accelerator

pytestmark = pytest.mark.usefixtures("fresh_state")


def test_each_loader_is_there_once_while_it_is_referenced():
    accelerator = Accelerator(cpu=True)
    first, second = (accelerator.prepare(DataLoader([number])) for number in (1, 2))
    accelerator.prepare(first)
    assert accelerator._dataloaders == [first, second]
    del first
    assert accelerator._dataloaders == [second]
    accelerator.free_memory()
    assert accelerator._dataloaders == []


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


def test_the_description_names_the_effective_batch_size_of_each_loader_that_has_one():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    assert "batch size" not in repr(accelerator)
    sampler = BatchSampler(SequentialSampler(range(32)), batch_size=2, drop_last=False)
    loaders = accelerator.prepare(
        DataLoader(range(32), batch_size=8),
        DataLoader(range(32), batch_sampler=sampler),
        DataLoader(range(3), batch_sampler=[[0, 1], [2]]),  # batches of any size
    )
    assert "processes: 1, device: cpu, mixed precision: no, effective batch size: 32, 8>" in str(accelerator)
    assert len(loaders) == 3
