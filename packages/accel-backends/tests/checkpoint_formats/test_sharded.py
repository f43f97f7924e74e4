"""Parts that ranks write become one state, which any other layout reads."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from accel_backends.checkpoint_formats.protocol import PreparedOptimizer, SaveChoices
from accel_backends.checkpoint_formats.sharded import ShardedFormat
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.saving.pending_files import write_file
from accel_state.errors import CheckpointError

FORMAT = ShardedFormat()
SHAPES = {"odd": (3, 5), "one": (1, 4), "matrix": (4, 6)}
"""On two ranks rows of these are two and one, one and none, two and two."""


def whole(name, add=0):
    shape = torch.Size(SHAPES[name])
    return torch.arange(float(shape.numel())).reshape(shape) + add


def write(files, folder):
    """Write the files of all ranks as a save does, and return the names of what this rank wrote."""
    names = [write_file(file, folder).name for file in files]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, names)
    for file in files if dist.get_rank() == 0 else ():
        write_file(file.table([name for names in gathered for name in names]), folder)
    dist.barrier()
    return [piece.name for file in files for piece in file.pieces]


def choices():
    return SaveChoices(rank=dist.get_rank(), is_writer=dist.get_rank() == 0)


def placed(values, layout, placements):
    mesh = init_device_mesh("cpu", layout)
    return {name: distribute_tensor(value, mesh, placements) for name, value in values.items()}


def save_model(folder, layout, placements):
    state = placed({name: whole(name) for name in SHAPES}, layout, placements)
    state |= {"tied": state["odd"], "count": torch.tensor(7), "extra": {"steps": 3}}
    return write(FORMAT.model_files(state, index=1, choices=choices()), folder)


def read_model(folder, layout, placements):
    own = placed({name: torch.full(SHAPES[name], -1.0) for name in SHAPES}, layout, placements)
    own["count"] = torch.tensor(0)
    saved = FORMAT.open_state(saved_files(folder), index=1)
    state = saved.read(own)
    assert all(state[name] is own[name] for name in own)
    return {name: state[name].full_tensor() for name in SHAPES} | {"count": own["count"]}


SHARDED = (2,), [Shard(0)]
HYBRID = (2, 1), [Replicate(), Shard(0)]
COLUMNS = (2,), [Shard(1)]


@pytest.mark.parametrize(
    ("written", "read", "pieces_of_rank_1"),
    [
        (SHARDED, COLUMNS, ["odd", "matrix"]),
        (COLUMNS, HYBRID, ["odd", "one", "matrix"]),
        (HYBRID, SHARDED, []),
    ],
    ids=["rows", "columns", "copies"],
)
def test_every_value_is_written_once_and_read_in_any_layout(world, tmp_path, written, read, pieces_of_rank_1):
    first, second = world(2).run(save_model, tmp_path, *written)
    assert first == [*SHAPES, "count", "extra"]
    assert second == pieces_of_rank_1
    for state in world(2).run(read_model, tmp_path, *read):
        assert all(torch.equal(state[name], whole(name)) for name in SHAPES)
        assert state["count"] == 7
    names = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")]
    assert FORMAT.indexes_in(names) == ([1], [])
    saved = FORMAT.open_state(saved_files(tmp_path), index=1)
    assert saved.shapes == {**SHAPES, "tied": SHAPES["odd"], "count": (), "extra": None}
    state = saved.read({})
    assert torch.equal(state["tied"], whole("odd"))
    assert state["extra"] == {"steps": 3}


class FakeStrategy:
    """What a format requires of a strategy for an optimizer.

    Args:
        named: The parameters by name.
        state: The optimizer state.
    """

    def __init__(self, named, state=None):
        self._named = named
        self._state = state

    def optimizer_tensors(self, optimizer):
        return self._state

    def optimizer_parameters(self, optimizer, models):
        items = list(self._named.items())
        return [dict(items[:2]), dict(items[2:])]


def parameters():
    values = {name: whole(name).to(torch.bfloat16) for name in SHAPES}
    return placed(values, (2,), [Shard(0)])


def save_optimizer(folder):
    moments = placed({name: whole(name, add=0.001) for name in SHAPES}, (2,), [Shard(0)])
    named = {name: parameters()[name] for name in ("odd", "matrix", "one")}
    state = {
        number: {"step": torch.tensor(float(number)), "moment": moments[name], "rows": torch.ones(9)}
        for number, name in enumerate(named)
    }
    groups = [{"lr": 0.1, "params": [0, 1]}, {"lr": 0.2, "betas": (0.5, 0.9), "params": [2]}]
    content = {"state": state, "param_groups": groups}
    prepared = PreparedOptimizer(FakeStrategy(named, content), torch.optim.Optimizer([torch.ones(1)], {}), [])
    write(FORMAT.optimizer_files(prepared, index=0, choices=choices()), folder)


def read_optimizer(folder, order):
    named = parameters()
    strategy = FakeStrategy({name: named[name] for name in order})
    prepared = PreparedOptimizer(strategy, torch.optim.Optimizer([torch.ones(1)], {}), [])
    state = FORMAT.read_optimizer(saved_files(folder), prepared, index=0)
    for values in state["state"].values():
        assert values["moment"].placements == (Shard(0),)
        values["moment"] = values["moment"].full_tensor()
    return state


def test_the_state_of_an_optimizer_finds_its_parameters_in_another_order(world, tmp_path):
    world(2).run(save_optimizer, tmp_path)
    order = ["one", "odd", "matrix"]
    for state in world(2).run(read_optimizer, tmp_path, order):
        assert list(state["state"]) == [0, 1, 2]
        for number, name in enumerate(order):
            values = state["state"][number]
            assert values["moment"].dtype == torch.float32  # not that of the parameter
            assert torch.equal(values["moment"], whole(name, add=0.001))
            assert values["step"] == ["odd", "matrix", "one"].index(name)
            assert torch.equal(values["rows"], torch.ones(9))
        assert state["param_groups"] == [
            {"lr": 0.1, "params": [1, 2]},
            {"lr": 0.2, "betas": (0.5, 0.9), "params": [0]},
        ]
    own = dict.fromkeys(["odd", "matrix", "other"], torch.ones(1))
    with pytest.raises(
        CheckpointError,
        match="`optimizer_0` does not fit the optimizer: it lacks `other`; it has `one`, which the optimizer does not",
    ):
        optimizer = torch.optim.Optimizer([torch.ones(1)], {})
        FORMAT.read_optimizer(
            saved_files(tmp_path), PreparedOptimizer(FakeStrategy(own), optimizer, []), index=0
        )
