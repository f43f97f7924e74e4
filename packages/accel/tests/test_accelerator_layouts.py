"""Ranks that work on the same samples: equal batches and seeds, metrics counted once, losses weighed once.

No strategy of accel serves all axes yet, so one is made here that accepts them: every rank
has the full model, and gradients are averaged over the ranks whose losses differ.
"""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset

from accel import Accelerator, ParallelismConfig
from accel.utils import set_seed
from accel_backends import Capabilities
from accel_backends.strategies.selection import STRATEGIES
from accel_backends.strategies.strategy import Strategy
from accel_state import MeshLayout
from accel_state.mesh_layout import AXES, DATA_AXES, LOSS_AXES
from accel_state.runtime import reset_runtime

LAYOUTS = [
    {"tp": 2},
    {"cp": 2},
    {"sp": 2},
    {"pp": 2},
    {"tp": 4},
    {"dp_shard": 2, "tp": 2},
    {"dp_shard": 2, "cp": 2},
    {"pp": 2, "dp_shard": 2},
]
on_layouts = pytest.mark.parametrize(
    "sizes", LAYOUTS, ids=lambda sizes: "-".join(f"{a}{n}" for a, n in sizes.items())
)


class AnyAxes(Strategy):
    """Accept every axis; average gradients over the loss ranks, after each backward."""

    name = "any_axes"
    capabilities = Capabilities(mesh_axes=frozenset(AXES))

    def setup(self, context):
        super().setup(context)
        self.models = []
        layout = context.layout
        groups = [dist.new_group(list(ranks)) for ranks in layout.groups(*LOSS_AXES)]
        self.group = groups[
            layout.groups(*LOSS_AXES).index(layout.group_of(context.topology.rank, *LOSS_AXES))
        ]

    def _parallelise(self, model):
        self.models.append(model)
        return model

    def backward(self, loss, **kwargs):
        super().backward(loss, **kwargs)
        for model in self.models:
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= self.context.layout.num_loss_ranks


class Plugin:
    strategy = "any_axes"


def accelerator_on(sizes, **arguments):
    STRATEGIES.register("any_axes", AnyAxes, replace=True)
    config = ParallelismConfig(**{f"{axis}_size": size for axis, size in sizes.items()}, sp_backend="torch")
    return Accelerator(cpu=True, parallelism_config=config, megatron_lm_plugin=Plugin(), **arguments)


class Arranging(Plugin):
    """Arranges the ranks by itself, as a config of an engine may."""

    def default_layout(self, topology):
        return MeshLayout(dp_shard=topology.world_size // 2, tp=2)

    def settle_layout(self, layout):
        self.settled = layout


def by_data_rank(sizes, answers):
    """Return the answer of each data rank, having seen that its ranks gave the same."""
    layout = MeshLayout(**sizes)
    found = {}
    for rank, answer in enumerate(answers):
        assert found.setdefault(layout.index(rank, *DATA_AXES), answer) == answer
    return [found[rank] for rank in range(layout.num_data_ranks)]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(16))


class ShuffledStream(IterableDataset):
    def __init__(self):
        self.generator = torch.Generator()
        self.generator.seed()

    def __iter__(self):
        return iter(torch.randperm(16, generator=self.generator).tolist())


LOADERS = [
    ("map", {}),
    ("map", {"use_seedable_sampler": True}),
    ("map", {"dispatch_batches": True}),
    ("stream", {}),
    ("stream", {"dispatch_batches": False}),
    ("shuffled stream", {"dispatch_batches": False}),
]


def epochs_of_all_loaders(sizes):
    return [epochs_of(sizes, kind, **settings) for kind, settings in LOADERS]


def epochs_of(sizes, kind, **settings):
    from accel import DataLoaderConfiguration

    reset_runtime(keep_process_group=True)
    accelerator = accelerator_on(sizes, dataloader_config=DataLoaderConfiguration(**settings))
    torch.manual_seed(accelerator.process_index)  # nobody asked the ranks to seed alike
    if kind == "map":
        loader = DataLoader(range(16), batch_size=2, shuffle=True)
    else:
        loader = DataLoader(Stream() if kind == "stream" else ShuffledStream(), batch_size=2)
    loader = accelerator.prepare(loader)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


@on_layouts
def test_ranks_that_work_together_read_the_same_batches(world, sizes):
    answers = world(MeshLayout(**sizes).world_size).run(epochs_of_all_loaders, sizes)
    for (kind, settings), *of_ranks in zip(LOADERS, *answers, strict=True):
        seen = by_data_rank(sizes, of_ranks)
        for epoch in range(2):
            samples = [sample for epochs in seen for batch in epochs[epoch] for sample in batch]
            assert sorted(samples) == list(range(16)), (kind, settings)
        if kind != "stream":
            assert seen[0][0] != seen[0][1], (kind, settings)


def seed_of(sizes):
    accelerator_on(sizes)
    set_seed(1000, device_specific=True)
    return torch.initial_seed() - 1000


@pytest.mark.parametrize(
    ("sizes", "seeds"),
    [
        ({"tp": 2}, [0, 0]),
        ({"cp": 2}, [0, 0]),
        ({"pp": 2}, [0, 1]),
        ({"dp_shard": 2}, [0, 1]),
        ({"dp_shard": 2, "tp": 2}, [0, 0, 1, 1]),
        ({"pp": 2, "tp": 2}, [0, 0, 1, 1]),
    ],
)
def test_seeds_are_equal_on_ranks_that_work_together_and_differ_between_stages(world, sizes, seeds):
    assert world(len(seeds)).run(seed_of, sizes) == seeds


def evaluated_in_all_ways(sizes):
    ways = [(dispatch, even) for dispatch in (False, True) for even in (False, True)]
    return {way: evaluated(sizes, *way) for way in ways}


def evaluated(sizes, dispatch, even):
    from accel import DataLoaderConfiguration

    reset_runtime(keep_process_group=True)
    settings = DataLoaderConfiguration(dispatch_batches=dispatch, even_batches=even)
    accelerator = accelerator_on(sizes, dataloader_config=settings)
    loader = accelerator.prepare(DataLoader(range(7), batch_size=2))
    rows, items = [], []
    for batch in loader:
        rows += accelerator.gather_for_metrics(batch).tolist()
        items += accelerator.gather_for_metrics(batch.tolist(), use_gather_object=True)
    return rows, items


@on_layouts
def test_every_sample_is_counted_once(world, sizes):
    numbers = list(range(7))
    for ways in world(MeshLayout(**sizes).world_size).run(evaluated_in_all_ways, sizes):
        for way, counted in ways.items():
            assert counted == (numbers, numbers), way


class OwnLength(IterableDataset):
    """A stream that shards itself, so that the steps are unknown."""

    def __init__(self, samples=range(8)):
        self.samples = samples

    num_shards = 8

    def shard(self, num_shards, index):
        return OwnLength(self.samples[index::num_shards])

    def __iter__(self):
        return iter(self.samples)


def gathered_where_no_steps_are_known(sizes):
    from accel import DataLoaderConfiguration

    settings = DataLoaderConfiguration(dispatch_batches=False)
    accelerator = accelerator_on(sizes, dataloader_config=settings)
    loader = accelerator.prepare(DataLoader(OwnLength(), batch_size=2))
    first = next(iter(loader))
    inside = accelerator.gather_for_metrics(first)
    for first in loader:
        inside = accelerator.gather_for_metrics(first)
        break
    return sorted(inside.tolist())


def gathered_outside_of_loops(sizes):
    accelerator = accelerator_on(sizes)
    own = accelerator.process_index
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        rows = accelerator.gather_for_metrics(torch.tensor([own]))
        items = accelerator.gather_for_metrics([own], use_gather_object=True)
    assert sum("outside of a loop" in str(one.message) for one in told) == 2 * accelerator.is_main_process
    return rows.tolist(), items


@pytest.mark.parametrize(
    ("sizes", "readers"), [({"tp": 2}, [0]), ({"dp_shard": 2}, [0, 1]), ({"dp_shard": 2, "tp": 2}, [0, 2])]
)
def test_outside_of_loops_one_of_the_ranks_that_work_together_counts(world, sizes, readers):
    size = MeshLayout(**sizes).world_size
    assert world(size).run(gathered_outside_of_loops, sizes) == [(readers, readers)] * size


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"dp_shard": 2, "tp": 2}])
def test_where_no_steps_are_known_ranks_that_work_together_count_once(world, sizes):
    layout = MeshLayout(**sizes)
    for rows in world(layout.world_size).run(gathered_where_no_steps_are_known, sizes):
        assert len(rows) == len(set(rows)) == 2 * layout.num_data_ranks


def scheduled(sizes):
    accelerator = accelerator_on(sizes)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    scheduler.step()
    return scheduler.scheduler.last_epoch


@on_layouts
def test_a_schedule_moves_once_for_each_batch_that_was_read(world, sizes):
    layout = MeshLayout(**sizes)
    assert world(layout.world_size).run(scheduled, sizes) == [layout.num_data_ranks] * layout.world_size


COUNTS = [1, 2, 3, 4]


def items_of(loss_rank, micro_batch):
    generator = torch.Generator().manual_seed(10 * micro_batch + loss_rank)
    return torch.randn(COUNTS[(loss_rank + micro_batch) % 4], 3, generator=generator, dtype=torch.float64)


def line():
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    torch.nn.init.constant_(model.weight, 0.3)
    torch.nn.init.constant_(model.bias, 0.1)
    return model


def weighted_step(sizes, num_steps):
    accelerator = accelerator_on(sizes, gradient_accumulation_steps=num_steps)
    model = line()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    own = MeshLayout(**sizes).index(accelerator.process_index, *LOSS_AXES)
    for micro_batch in range(num_steps):
        with accelerator.accumulate(model):
            items = items_of(own, micro_batch)
            accelerator.backward(model(items).square().mean(), num_items=len(items))
            optimizer.step()
    return [value.tolist() for value in model.parameters()]


@on_layouts
@pytest.mark.parametrize("num_steps", [1, 2])
def test_weighted_losses_count_every_item_once(world, sizes, num_steps):
    layout = MeshLayout(**sizes)
    model = line()
    ranks = range(layout.num_loss_ranks)
    items = torch.cat([items_of(rank, step) for rank in ranks for step in range(num_steps)])
    model(items).square().mean().backward()
    torch.optim.SGD(model.parameters(), lr=0.5).step()
    for weights in world(layout.world_size).run(weighted_step, sizes, num_steps):
        for found, wanted in zip(weights, model.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted.detach())


def step_with_many_items(sizes):
    accelerator = accelerator_on(sizes)
    model = accelerator.prepare(line())
    own = MeshLayout(**sizes).index(accelerator.process_index, *LOSS_AXES)
    loss = model(items_of(own, 0)).square().mean()
    accelerator.backward(loss, num_items=2**24 + 1 + own)
    return [getattr(one.grad, "full_tensor", lambda one=one: one.grad)() for one in model.parameters()]


@on_layouts
def test_counts_of_items_beyond_the_digits_of_fp32_are_exact(world, sizes):
    layout = MeshLayout(**sizes)
    model = line()
    counts = [2**24 + 1 + rank for rank in range(layout.num_loss_ranks)]
    for rank, count in enumerate(counts):
        (model(items_of(rank, 0)).square().mean() * (count / sum(counts))).backward()
    for gradients in world(layout.world_size).run(step_with_many_items, sizes):
        for gradient, wanted in zip(gradients, model.parameters(), strict=True):
            torch.testing.assert_close(gradient, wanted.grad, rtol=1e-12, atol=0)


def places(sizes):
    accelerator = accelerator_on(sizes)
    return (
        accelerator.pipeline_parallel_rank,
        accelerator.data_parallel_rank,
        accelerator.data_parallel_shard_rank,
        accelerator.context_parallel_rank,
        accelerator.tensor_parallel_rank,
    )


def test_every_rank_knows_its_place(world):
    assert world(4).run(places, {"pp": 2, "tp": 2}) == [
        (0, 0, 0, 0, 0), (0, 0, 0, 0, 1), (1, 0, 0, 0, 0), (1, 0, 0, 0, 1),
    ]  # fmt: skip
    assert world(4).run(places, {"dp_shard": 2, "cp": 2}) == [
        (0, 0, 0, 0, 0), (0, 0, 0, 1, 0), (0, 0, 1, 0, 0), (0, 0, 1, 1, 0),
    ]  # fmt: skip


def saved(sizes, folder):
    accelerator = accelerator_on(sizes)
    set_seed(3, device_specific=True)
    accelerator.save_state(folder)
    return torch.rand(2).tolist()


def loaded(sizes, folder):
    accelerator = accelerator_on(sizes)
    set_seed(99, device_specific=True)
    accelerator.load_state(folder)
    return torch.rand(2).tolist()


def test_another_tensor_parallel_size_continues_with_the_random_states_of_the_data_ranks(world, tmp_path):
    folder = str(tmp_path / "a")
    first, again, second, _ = world(4).run(saved, {"dp_shard": 2, "tp": 2}, folder)
    assert first == again != second
    assert world(4).run(loaded, {"dp_shard": 2, "tp": 2}, folder) == [first, first, second, second]
    assert world(2).run(loaded, {"dp_shard": 2}, folder) == [first, second]


def test_other_data_ranks_draw_new_numbers_alike_on_ranks_that_work_together(world, tmp_path):
    folder = str(tmp_path / "a")
    before = world(2).run(saved, {"dp_shard": 2}, folder)
    one, same = world(2).run(loaded, {"tp": 2}, folder)
    assert one == same
    assert one not in before
    first, again, second, other = world(4).run(loaded, {"dp_shard": 2, "cp": 2}, folder)
    assert [first, second] == before == [again, other]


def arranged_by_its_engine(size):
    STRATEGIES.register("any_axes", AnyAxes, replace=True)
    plugin = Arranging()
    config = size and ParallelismConfig(dp_shard_size=2, tp_size=size)
    accelerator = Accelerator(cpu=True, megatron_lm_plugin=plugin, parallelism_config=config)
    loader = accelerator.prepare(DataLoader(list(range(8)), batch_size=2))
    rows = [accelerator.gather_for_metrics(batch).tolist() for batch in loader]
    return (
        accelerator.parallelism_config.tp_size,
        plugin.settled.tp,
        accelerator.torch_device_mesh["tp"].size(),
        rows,
    )


@pytest.mark.parametrize("size", [None, 2])
def test_an_engine_may_arrange_ranks_that_share_batches(world, size):
    for sizes in world(4).run(arranged_by_its_engine, size):
        assert sizes == (2, 2, 2, [[0, 1, 2, 3], [4, 5, 6, 7]])
