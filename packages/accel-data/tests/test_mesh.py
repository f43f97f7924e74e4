from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import gather_for_metrics, prepare_data_loader
from accel_data.mesh import DataRanks, data_ranks
from accel_state.partial_state import PartialState


class FakeMesh:
    """A mesh as one rank sees it, without processes."""

    def __init__(self, names: tuple[str, ...], shape: tuple[int, ...], rank: int) -> None:
        self.mesh_dim_names = names
        self.mesh = torch.arange(torch.Size(shape).numel()).reshape(shape)
        self._place = (self.mesh == rank).nonzero()[0].tolist()

    def size(self, axis: int) -> int:
        return self.mesh.shape[axis]

    def get_local_rank(self, name: str) -> int:
        return self._place[self.mesh_dim_names.index(name)]


@pytest.mark.parametrize(
    ("names", "shape", "of_world"),
    [
        (("dp",), (4,), (0, 1, 2, 3)),
        (("dp", "tp"), (2, 2), (0, 0, 1, 1)),
        (("tp", "dp_shard"), (2, 2), (0, 1, 0, 1)),
        (("dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 1, 2), (0, 0, 1, 1, 2, 2, 3, 3)),
        (("tp",), (2,), (0, 0)),
    ],
)
def test_ranks_that_differ_on_a_shared_axis_only_read_the_same(
    names: tuple[str, ...], shape: tuple[int, ...], of_world: tuple[int, ...]
) -> None:
    for rank, number in enumerate(of_world):
        ranks = data_ranks(FakeMesh(names, shape, rank))
        assert (ranks.num_ranks, ranks.rank, ranks.of_world) == (len(set(of_world)), number, of_world)


def test_one_reader_is_taken_for_each_part_of_the_data() -> None:
    assert DataRanks(2, 0, (0, 1, 0, 1)).representatives == (0, 1)
    assert DataRanks(2, 0, (0, 0, 1, 1)).representatives == (0, 2)
    assert DataRanks(2, 0, (0, 0, 1, 1)).is_shared
    assert not DataRanks(2, 0, (0, 1)).is_shared


def evaluate_on_a_mesh(names: tuple[str, ...], shape: tuple[int, ...], dispatch: bool) -> list[Any]:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    seen = []
    for even in (True, False):
        loader = prepare_data_loader(
            DataLoader(list(range(7)), batch_size=2),
            torch_device_mesh=mesh,
            dispatch_batches=dispatch,
            even_batches=even,
        )
        rows: list[int] = []
        items: list[int] = []
        for batch in loader:
            rows += gather_for_metrics(batch).tolist()
            items += gather_for_metrics(batch.tolist(), use_gather_object=True)
        seen.append((rows, items))
    return seen


@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(("names", "shape"), [(("tp",), (2,)), (("dp", "tp"), (1, 2))])
def test_tensor_parallel_ranks_see_and_count_every_sample_once(
    world: Callable[[int], Any], names: tuple[str, ...], shape: tuple[int, ...], dispatch: bool
) -> None:
    numbers = list(range(7))
    assert world(2).run(evaluate_on_a_mesh, names, shape, dispatch) == [[(numbers, numbers)] * 2] * 2


def losses_of_parts_of_sequences(name: str) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp_shard", name))
    loader = prepare_data_loader(DataLoader(list(range(3)), batch_size=2), torch_device_mesh=mesh)
    losses: list[float] = []
    for batch in loader:
        own = batch.float() + 4 * PartialState().process_index
        losses += gather_for_metrics(own).tolist()
    return losses


@pytest.mark.parametrize(("name", "losses"), [("cp", [2.0, 3.0, 4.0]), ("tp", [0.0, 1.0, 2.0])])
def test_losses_of_sequence_parallel_ranks_are_averaged(
    world: Callable[[int], Any], name: str, losses: list[float]
) -> None:
    assert world(2).run(losses_of_parts_of_sequences, name) == [losses] * 2


def shuffle_on_a_tensor_parallel_mesh() -> list[int]:
    from torch.distributed.device_mesh import init_device_mesh

    torch.manual_seed(PartialState().process_index)
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    loader = prepare_data_loader(DataLoader(list(range(24)), shuffle=True), torch_device_mesh=mesh)
    return [int(row) for batch in loader for row in batch]


def test_the_ranks_of_a_tensor_parallel_group_shuffle_alike(world: Callable[[int], Any]) -> None:
    first, second = world(2).run(shuffle_on_a_tensor_parallel_mesh)
    assert first == second
    assert sorted(first) == list(range(24))


def test_a_place_that_contradicts_the_mesh_is_reported_to_have_no_effect() -> None:
    mesh = FakeMesh(("dp", "tp"), (2, 2), 3)
    with pytest.warns(
        UserWarning, match="no effect next to `torch_device_mesh`, which makes this process 1 of 2"
    ):
        prepare_data_loader(
            DataLoader(list(range(4))), num_processes=4, process_index=3, torch_device_mesh=mesh
        )
