"""What a prepared loader keeps, places and shows; what it costs if the user has not requested it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from accel import Accelerator, DataLoaderConfiguration
from accel_data import DataLoaderDispatcher
from accel_state.errors import ConfigError
from tools.harness.scripts import run_script


class Buffer(Dataset[float]):
    """Counts how often its state is taken."""

    def __init__(self) -> None:
        self.num_states = 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> float:
        return float(index)

    def state_dict(self) -> dict[str, int]:
        self.num_states += 1
        return {"states": self.num_states}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_states = state["states"]


class Stream(Buffer, IterableDataset[float]):  # type: ignore[misc]
    __len__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return iter(map(float, range(6)))


def test_the_state_of_a_data_set_is_not_taken_with_each_batch():
    data, accelerator = Stream(), Accelerator(cpu=True)
    for _ in accelerator.prepare(DataLoader(data, batch_size=2)):
        pass
    assert data.num_states == 0


def test_the_state_of_a_data_set_is_kept_where_preemption_is_handled():
    data, accelerator = Stream(), Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(data, batch_size=2))
    with accelerator.handle_preemption():
        for _ in loader:
            pass
    assert data.num_states == 3


def test_a_stream_whose_state_was_not_kept_is_read_up_to_its_position(tmp_path: Any):
    accelerator = Accelerator(cpu=True)
    loader = accelerator.prepare(DataLoader(Stream(), batch_size=2))
    for _ in loader:
        accelerator.save_state(tmp_path / "state")
        break
    accelerator.load_state(tmp_path / "state", restore_loaders=True)
    assert [batch.tolist() for batch in loader] == [[2.0, 3.0], [4.0, 5.0]]


def test_a_stream_that_stays_where_it_is_is_not_dispatched():
    accelerator = Accelerator(cpu=True, device_placement=False)
    loader = accelerator.prepare(DataLoader(Stream(), batch_size=2))
    assert not isinstance(loader, DataLoaderDispatcher)
    assert loader.device is None

    asked = DataLoaderConfiguration(dispatch_batches=True)
    accelerator = Accelerator(cpu=True, device_placement=False, dataloader_config=asked)
    with pytest.raises(ConfigError, match="`dispatch_batches=True` needs `device_placement=True`"):
        accelerator.prepare(DataLoader(Stream(), batch_size=2))


OPEN_AT_EXIT = """
import torch
from accel import Accelerator
loader = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(torch.arange(7.0), batch_size=2))
torch.kept_to_the_end = batches = iter(loader)
print(next(batches))
"""


def test_a_loader_that_is_being_read_at_exit_prints_nothing():
    done = run_script("-c", OPEN_AT_EXIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "tensor([0., 1.])\n", "")


def read_uneven(is_training: bool, joins: bool) -> list[str]:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=False))
    model, loader = accelerator.prepare(nn.Linear(1, 1), DataLoader(torch.ones(5, 1), batch_size=2))
    with warnings.catch_warnings(record=True) as caught, torch.set_grad_enabled(is_training):
        warnings.simplefilter("always")
        if joins:
            with accelerator.join_uneven_inputs([model]):
                for batch in loader:
                    accelerator.backward(model(batch).sum())
        else:
            for batch in loader:
                model.module(batch)
    return [str(one.message) for one in caught]


def test_a_rank_that_has_fewer_batches_reports_it_with_the_numbers(world: Any):
    said = world(2).run(read_uneven, True, False)
    assert said[0] == []
    assert len(said[1]) == 1
    assert "Rank 1 has read its 1 batches, and other ranks have 2" in said[1][0]
    assert world(2).run(read_uneven, True, True) == [[], []]
    assert world(2).run(read_uneven, False, False) == [[], []]


@pytest.mark.parametrize("dispatch", [None, True])
def test_a_position_that_was_loaded_is_saved_before_the_loop_begins(tmp_path, dispatch, caplog):
    """As by a run that is requested to end at once."""

    def run():
        accelerator = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch)
        )
        return accelerator, accelerator.prepare(DataLoader(range(6), batch_size=2))  # type: ignore[arg-type]

    accelerator, loader = run()
    for _ in loader:
        accelerator.save_state(tmp_path / "0")
        break
    for number in range(2):
        accelerator, loader = run()
        accelerator.load_state(tmp_path / f"{number}", restore_loaders=True)
        accelerator.save_state(tmp_path / f"{number + 1}")
    assert "left early" not in caplog.text
    assert [batch.tolist() for batch in loader] == [[2, 3], [4, 5]]
    accelerator.save_state(tmp_path / "end")
    accelerator, loader = run()
    accelerator.load_state(tmp_path / "end", restore_loaders=True)
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5]]
