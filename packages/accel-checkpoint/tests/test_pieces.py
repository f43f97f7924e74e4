import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from accel_checkpoint.pieces import Piece, pieces_of
from accel_state import PartialState
from accel_state.errors import CheckpointError


def test_every_entry_comes_once_with_its_other_names():
    weight, view = torch.ones(2, 3), torch.zeros(4)
    state = {
        "a": weight,
        "extra": {"n": 1},
        "b": weight,
        "part": view[:2],
        "scalar": torch.tensor(1.0),
        "c": weight,
    }
    pieces = {piece.name: piece for piece in pieces_of(state, is_writer=False)}
    assert list(pieces) == ["a", "extra", "part", "scalar"]
    assert pieces["a"].local is weight
    assert (pieces["a"].shape, pieces["a"].offset, pieces["a"].aliases) == ((2, 3), (0, 0), ("b", "c"))
    assert pieces["extra"] == Piece("extra", {"n": 1}, is_writer=False)
    assert (pieces["scalar"].shape, pieces["scalar"].offset) == ((), ())
    assert all(piece.is_full and not piece.is_writer for piece in pieces.values())


def test_tensors_without_a_dense_memory_are_pieces_too():
    sparse = torch.eye(3).to_sparse()
    [piece] = pieces_of({"s": sparse}, is_writer=True)
    assert piece.local is sparse
    assert piece.is_full


def parts_of_shards():
    PartialState(cpu=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(35.0).reshape(5, 7)
    layouts = {"rows": [Shard(0)], "columns": [Shard(1)], "copies": [Replicate()]}
    state = {name: distribute_tensor(whole, mesh, placements) for name, placements in layouts.items()}
    own = [
        (piece.name, piece.local.clone(), piece.shape, piece.offset, piece.is_writer)
        for piece in pieces_of(state, is_writer=True)
    ]
    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, own)
    for name in layouts:
        rebuilt, written = torch.full((5, 7), -1.0), torch.zeros(5, 7)
        for _, local, shape, offset, is_writer in (
            one for rank in gathered for one in rank if one[0] == name
        ):
            assert shape == (5, 7)
            place = tuple(slice(begin, begin + size) for begin, size in zip(offset, local.shape, strict=True))
            rebuilt[place] = local
            written[place] += is_writer
        assert torch.equal(rebuilt, whole)
        assert torch.equal(written, torch.ones(5, 7))  # exactly one rank writes each number
    partial = {"p": DTensor.from_local(whole, mesh, [Partial()])}
    with pytest.raises(CheckpointError, match="`p` has the placement"):
        list(pieces_of(partial, is_writer=True))


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_pieces_of_all_ranks_are_the_whole_and_each_is_written_once(world, num_ranks):
    world(num_ranks).run(parts_of_shards)


def names_of_the_same_part():
    PartialState(cpu=True)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    part = torch.ones(2, 3)
    rows = DTensor.from_local(part, mesh, [Shard(0)])
    state = {
        "part": part,
        "rows": rows,
        "columns": DTensor.from_local(part, mesh, [Shard(1)]),
        "copies": DTensor.from_local(part, mesh, [Replicate()]),
        "tied": rows,
        "tied_part": part,
    }
    return [(piece.name, piece.shape, piece.aliases) for piece in pieces_of(state, is_writer=True)]


def test_equal_parts_of_different_tensors_are_not_aliases(world):
    assert world(2).run(names_of_the_same_part)[0] == [
        ("part", (2, 3), ("tied_part",)),
        ("rows", (4, 3), ("tied",)),
        ("columns", (2, 6), ()),
        ("copies", (2, 3), ()),
    ]


def parts_on_two_axes():
    PartialState(cpu=True)
    mesh = init_device_mesh("cpu", (2, 2))
    whole = torch.arange(15.0).reshape(5, 3)
    state = {
        "hybrid": distribute_tensor(whole, mesh, [Replicate(), Shard(0)]),
        "both": distribute_tensor(whole, mesh, [Shard(1), Shard(0)]),
        "twice": distribute_tensor(whole, mesh, [Shard(0), Shard(0)]),
    }
    return [
        (piece.name, piece.local.tolist(), piece.offset, piece.is_writer)
        for piece in pieces_of(state, is_writer=True)
    ]


def test_tensors_that_are_sharded_along_two_axes_are_written_once(world):
    by_rank = world(4).run(parts_on_two_axes)
    for name in ("hybrid", "both", "twice"):
        rebuilt, written = torch.full((5, 3), -1.0), torch.zeros(5, 3)
        for _, rows, offset, is_writer in (one for rank in by_rank for one in rank if one[0] == name):
            local = torch.tensor(rows)
            if local.numel():
                place = tuple(
                    slice(begin, begin + size) for begin, size in zip(offset, local.shape, strict=True)
                )
                rebuilt[place] = local
                written[place] += is_writer
        assert torch.equal(rebuilt, torch.arange(15.0).reshape(5, 3)), name
        assert torch.equal(written, torch.ones(5, 3)), name
