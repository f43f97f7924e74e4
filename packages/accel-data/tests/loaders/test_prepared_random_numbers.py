from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from accel_data import prepare_data_loader, skip_first_batches
from accel_data.samplers.order import fork_rng

pytestmark = pytest.mark.usefixtures("fresh_state")


def loader() -> DataLoader:
    return prepare_data_loader(
        DataLoader(torch.arange(12), batch_size=2, shuffle=True), device=torch.device("cpu")
    )


def draws(batches, *, num_batches: int) -> list[tuple[list[int], float]]:
    """Read batches and draw a number after each, as dropout would."""
    return [
        (batch.tolist(), torch.rand(()).item()) for _, batch in zip(range(num_batches), batches, strict=False)
    ]


def test_what_is_drawn_in_the_block_is_drawn_again_after_it():
    with fork_rng(enabled=True):
        first = torch.rand(3)
    assert torch.equal(torch.rand(3), first)


def test_at_the_start_of_an_epoch_generators_move():
    torch.manual_seed(0)
    expected = torch.rand(2)[1]
    torch.manual_seed(0)
    with fork_rng(enabled=False):
        torch.rand(())
    assert torch.rand(()) == expected


@pytest.mark.parametrize("is_skipped", [False, True], ids=["load_state_dict", "skip_first_batches"])
def test_the_rest_of_an_epoch_draws_what_the_unbroken_one_drew(is_skipped):
    torch.manual_seed(0)
    unbroken = draws(loader(), num_batches=6)
    torch.manual_seed(0)
    begun = loader()
    draws(begun, num_batches=3)
    state, generator = begun.state_dict(), torch.get_rng_state()
    torch.manual_seed(99)
    resumed = loader()
    resumed.load_state_dict(state, position=not is_skipped)
    torch.set_rng_state(generator)
    rest = skip_first_batches(resumed, 3) if is_skipped else resumed
    assert draws(rest, num_batches=3) == unbroken[3:]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[int]:
        return iter(range(12))


def test_a_dispatched_stream_that_is_resumed_draws_what_the_unbroken_one_drew():
    def stream():
        return prepare_data_loader(DataLoader(Stream(), batch_size=2))

    torch.manual_seed(0)
    unbroken = draws(stream(), num_batches=6)
    torch.manual_seed(0)
    begun = stream()
    draws(begun, num_batches=3)
    generator = torch.get_rng_state()
    resumed = stream()
    resumed.load_state_dict(begun.state_dict())
    torch.set_rng_state(generator)
    with pytest.warns(UserWarning, match="are read again"):
        assert draws(resumed, num_batches=3) == unbroken[3:]
