import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from accel import Accelerator, DataLoaderConfiguration
from accel_state.errors import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_state")


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(3, 1))


def uneven_stream(*, dispatch):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    model, loader = accelerator.prepare(nn.Linear(1, 1, bias=False), DataLoader(Stream(), batch_size=1))
    counted = 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            accelerator.backward(model(batch).sum())
            counted += 1
    return counted


def test_a_stream_may_be_dealt_unevenly_too(world):
    assert world(2).run(uneven_stream, dispatch=False) == [2, 1]


def warned(*, dispatch):
    with pytest.warns(UserWarning, match="`even_batches=False` has no effect on a prepared DataLoaderDisp"):
        return uneven_stream(dispatch=dispatch)


def test_a_loader_that_rank_0_reads_for_all_says_that_it_stays_even(world):
    assert world(2).run(warned, dispatch=True) == [2, 2]


def accumulate_unevenly(num_samples, *, num_steps, stream=False):
    """Train on samples 1, 2, …, one a batch; return the weight after each step of the optimizer."""
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=num_steps,
        dataloader_config=DataLoaderConfiguration(dispatch_batches=False),
    )
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    data = Stream() if stream else (torch.arange(num_samples, dtype=torch.float64) + 1).view(-1, 1)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=1.0), DataLoader(data, batch_size=1)
    )
    weights, counted = [], 0
    with accelerator.join_uneven_inputs([model], even_batches=False):
        for batch in loader:
            counted += 1
            with accelerator.accumulate(model):
                accelerator.backward(model(batch.double()).sum())
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    weights.append(accelerator.unwrap_model(model).weight.item())
    return weights, counted


@pytest.mark.parametrize("num_samples", range(1, 12))
@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_ranks_that_end_at_different_batches_accumulate_and_step_together(world, num_samples, num_steps):
    (first, num_first), (second, num_second) = world(2).run(
        accumulate_unevenly, num_samples, num_steps=num_steps
    )
    assert (num_first, num_second) == (-(-num_samples // 2), num_samples // 2)
    assert second == first[: len(second)]
    # Each gradient is the mean over both ranks; one that is done adds nothing.
    steps, window = [], []
    for step in range(num_first):
        window.append((2 * step + 1, 2 * step + 2 if step < num_second else 0))
        ends_a_rank = step + 1 in (num_first, num_second)
        if len(window) == num_steps or ends_a_rank:
            steps.append(sum(map(sum, window)) / num_steps / 2)
            window = []
    assert -first[-1] == pytest.approx(sum(steps))


def test_accumulating_over_a_stream_of_unknown_ends_is_refused(world):
    with pytest.raises(ConfigError, match="accumulated over a stream whose ranks may end at different"):
        world(2).run(accumulate_unevenly, 3, num_steps=2, stream=True)
