"""Several loaders in one loop: which one ends accumulation windows, and whose padding is removed."""

import itertools
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator, DataLoaderConfiguration, skip_first_batches

pytestmark = pytest.mark.usefixtures("fresh_state")


class Run:
    """Training in windows of 4 micro-batches; records their sizes."""

    def __init__(self, *, dispatch=False):
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=4,
            dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch),
        )
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        self.model, self.optimizer, self.schedule = self.accelerator.prepare(model, optimizer, schedule)
        self.sizes, self.size = [], 0

    def loader(self, num_batches, *, rows=2, offset=0, rest=0):
        """Return a loader with so many batches on each rank, and ``rest`` rows less in the last one."""
        size = num_batches * rows * self.accelerator.num_processes - rest
        return self.accelerator.prepare(
            DataLoader(torch.arange(offset, offset + size).float(), batch_size=rows)
        )

    def micro_batch(self, read=lambda: None):
        with self.accelerator.accumulate(self.model):
            read()
            self.accelerator.backward(self.model(torch.ones(2, 1)).sum())
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        self.size += 1
        if self.accelerator.sync_gradients:
            self.sizes.append(self.size)
            self.size = 0
            ends = self.schedule.scheduler.last_epoch == len(self.sizes) * self.accelerator.num_processes
            assert ends, "the schedule moves once in a window"

    def ended(self):
        return self.sizes if not self.size else [*self.sizes, f"open: {self.size}"]


def cycled(loader):
    while True:
        yield from loader


def beside(run, main=6, other=3):
    """A loop over one loader, and `next` of a cycled one, in two epochs."""
    labelled, unlabelled = run.loader(main), cycled(run.loader(other))
    for _ in range(2):
        for _ in labelled:
            next(unlabelled)
            run.micro_batch()


def beside_within_the_block(run):
    labelled, unlabelled = run.loader(6), cycled(run.loader(3))
    for _ in range(2):
        for _ in labelled:
            run.micro_batch(read=lambda: next(unlabelled))


def beside_of_one_batch(run):
    beside(run, other=1)


def beside_that_is_longer(run):
    beside(run, other=20)


def beside_that_begins_again_with_the_last_batch(run):
    beside(run, other=5)


def begun_anew_by_hand(run):
    labelled, unlabelled = run.loader(6), run.loader(4)
    batches = iter(unlabelled)
    for _ in range(2):
        for _ in labelled:
            try:
                next(batches)
            except StopIteration:
                batches = iter(unlabelled)
                next(batches)
            run.micro_batch()


def beside_and_evaluated(run):
    labelled, unlabelled, test = run.loader(6), cycled(run.loader(3)), run.loader(2)
    for _ in range(2):
        for number, _ in enumerate(labelled):
            next(unlabelled)
            if number == 2:
                list(test)
            run.micro_batch()
        list(test)


def zipped_with_a_cycled_one(run):
    labelled, unlabelled = run.loader(6), run.loader(3)
    for _ in range(2):
        for _ in zip(labelled, cycled(unlabelled), strict=False):
            run.micro_batch()


def zipped_with_a_remembered_one(run):
    labelled, unlabelled = run.loader(6), run.loader(3)
    for _ in range(2):
        for _ in zip(labelled, itertools.cycle(unlabelled), strict=False):
            run.micro_batch()


def zipped_with_a_longer_one(run):
    short, long = run.loader(6), run.loader(9)
    for _ in range(2):
        for _ in zip(short, long, strict=False):
            run.micro_batch()


def evaluated_within(run):
    train, test = run.loader(6), run.loader(3)
    for _ in range(2):
        for _ in train:
            run.micro_batch()
            list(test)


def evaluated_before_each_batch(run):
    train, test = run.loader(6), run.loader(1)
    for _ in range(2):
        for _ in train:
            list(test)
            run.micro_batch()


def after_a_batch_of_another_that_is_kept(run):
    samples = iter(run.loader(3))
    next(samples)
    for _ in range(2):
        for _ in run.loader(6):
            run.micro_batch()


def after_a_phase_over_the_other(run):
    labelled, unlabelled = run.loader(6), run.loader(6)
    for _ in unlabelled:
        run.micro_batch()
    for _ in zip(labelled, cycled(unlabelled), strict=False):
        run.micro_batch()


def resumed(run):
    """Both loaders in the middle."""
    labelled, unlabelled = run.loader(8), run.loader(3)
    rest = iter(skip_first_batches(unlabelled, 1))
    for _ in skip_first_batches(labelled, 2):
        if next(rest, None) is None:
            rest = iter(unlabelled)
            next(rest)
        run.micro_batch()
    for _ in labelled:
        next(rest, None)
        run.micro_batch()


def sizes_of(loop, *, dispatch):
    run = Run(dispatch=dispatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loop(run)
    return run.ended()


LOOPS = {
    beside: [4, 2, 4, 2],
    beside_within_the_block: [4, 2, 4, 2],
    beside_of_one_batch: [4, 2, 4, 2],
    beside_that_is_longer: [4, 2, 4, 2],
    beside_that_begins_again_with_the_last_batch: [4, 2, 4, 2],
    begun_anew_by_hand: [4, 2, 4, 2],
    beside_and_evaluated: [4, 2, 4, 2],
    zipped_with_a_cycled_one: [4, 2, 4, 2],
    zipped_with_a_remembered_one: [4, 2, 4, 2],
    zipped_with_a_longer_one: [4, 2, 4, 2],
    evaluated_within: [4, 2, 4, 2],
    evaluated_before_each_batch: [4, 2, 4, 2],
    after_a_batch_of_another_that_is_kept: [4, 2, 4, 2],
    after_a_phase_over_the_other: [4, 2, 4, 2],
    resumed: [4, 2, 4, 4],
}


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_windows_end_with_the_loader_that_the_loop_goes_over(world, num_ranks, dispatch):
    """A loader that is read next to it, or within one of its iterations, ends none."""
    found = {loop: world(num_ranks).run(sizes_of, loop, dispatch=dispatch) for loop in LOOPS}
    assert found == {loop: [sizes] * num_ranks for loop, sizes in LOOPS.items()}


def with_two_blocks(run):
    """As a GAN: each part of it has a block, and the second loader is read between them."""
    real, noise = run.loader(6), cycled(run.loader(4))
    flags = []
    for _ in range(2):
        for _ in real:
            run.micro_batch()
            flags.append(run.accelerator.sync_gradients)
            next(noise)
            run.micro_batch()
            flags.append(run.accelerator.sync_gradients)
    return [place for place, flag in enumerate(flags) if flag]


def sync_places(loop):
    return loop(Run())


def test_a_loader_read_between_two_blocks_ends_no_window():
    assert sync_places(with_two_blocks) == [3, 7, 10, 11, 15, 19, 22, 23]


def left_early(run):
    """A loop that was left and one in which the window continues, next to a cycled loader."""
    labelled, unlabelled = run.loader(6), cycled(run.loader(3))
    for number, _ in enumerate(labelled):
        next(unlabelled)
        run.micro_batch()
        if number == 2:
            break
    for _ in labelled:
        next(unlabelled)
        run.micro_batch()


def test_a_window_that_a_loop_has_left_continues_in_the_next_one():
    assert sizes_of(left_early, dispatch=False) == [4, 4, 1]


def zipped_with_a_shorter_one(run):
    for _ in zip(run.loader(6), run.loader(3), strict=False):
        run.micro_batch()


def test_a_zip_that_ends_with_a_later_loader_warns_of_an_open_window():
    with pytest.warns(
        UserWarning, match="ended within an accumulation window.*put the shortest loader first"
    ):
        zipped_with_a_shorter_one(run := Run())
    assert run.ended() == ["open: 3"]


def metrics_beside(*, is_within, dispatch):
    """Return what is gathered of the loader that the loop goes over, and of one that is evaluated in the loop."""
    run = Run(dispatch=dispatch)
    gather = run.accelerator.gather_for_metrics
    labelled, unlabelled = run.loader(6, rest=1), cycled(run.loader(3, offset=100, rest=1))
    test = run.loader(2, offset=50, rest=1)
    seen, tested = [], []
    for batch in labelled:
        next(unlabelled)
        seen += gather(batch).tolist()
        if is_within:
            tested = [value for rows in test for value in gather(rows).tolist()]
    assert tested == list(range(50, 50 + len(tested)))
    return len(seen), len(set(seen)), len(tested)


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize("is_within", [False, True])
def test_metrics_leave_out_the_padding_of_the_loader_that_the_loop_goes_over(world, is_within, dispatch):
    found = world(2).run(metrics_beside, is_within=is_within, dispatch=dispatch)
    assert found == [(23, 23, 7 * is_within)] * 2
