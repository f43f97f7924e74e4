from __future__ import annotations

from collections.abc import Iterator

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from accel_data import get_sampler, prepare_data_loader


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


class ByList:
    def __len__(self) -> int:
        return 4

    def __getitem__(self, indices: list[int]) -> list[int]:
        return indices


def test_the_sampler_is_found_wherever_it_is() -> None:
    sampler = SequentialSampler(range(4))
    loaders = [
        DataLoader(range(4), sampler=sampler),  # type: ignore[arg-type]
        DataLoader(range(4), batch_sampler=BatchSampler(sampler, 2, False)),  # type: ignore[arg-type]
        DataLoader(range(4), sampler=sampler, batch_size=None),  # type: ignore[arg-type]
        DataLoader(ByList(), sampler=BatchSampler(sampler, 2, False), batch_size=None),  # type: ignore[arg-type]
    ]
    for loader in loaders:
        assert get_sampler(loader) is sampler
        assert get_sampler(prepare_data_loader(loader, num_processes=2, process_index=0)) is sampler


def test_a_stream_has_no_sampler() -> None:
    assert get_sampler(DataLoader(Stream(), batch_size=None)) is None


def test_the_sampler_can_be_replaced_between_epochs() -> None:
    prepared = prepare_data_loader(DataLoader(range(8), batch_size=2), num_processes=2, process_index=1)  # type: ignore[arg-type]
    replacement = SequentialSampler(range(4))
    prepared.set_sampler(replacement)  # type: ignore[attr-defined]
    assert get_sampler(prepared) is replacement
    assert [batch.tolist() for batch in prepared] == [[2, 3]]


def test_a_batch_sampler_of_the_user_is_given_the_epoch_once() -> None:
    class Told(BatchSampler):
        epochs: list[int]

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    batches = Told(RandomSampler(range(4)), 2, False)
    batches.epochs = []
    prepared = prepare_data_loader(
        DataLoader(range(4), batch_sampler=batches), num_processes=1, process_index=0
    )  # type: ignore[arg-type]
    prepared.set_epoch(2)  # type: ignore[attr-defined]
    assert batches.epochs == [2]


def test_a_sampler_is_replaced_under_the_shard_of_single_indices() -> None:
    prepared = prepare_data_loader(
        DataLoader(range(4), batch_size=None),  # type: ignore[arg-type]
        num_processes=2,
        process_index=1,
    )
    prepared.set_sampler([3, 2, 1, 0])
    assert list(prepared) == [2, 0]
