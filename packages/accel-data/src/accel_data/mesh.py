"""Which ranks of a run read the same data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accel_state.mesh_layout import AXES, DATA_AXES, MeshLayout

#: Axes of a mesh along which the ranks work on the same samples together; all others, whatever they are called,
#: are data axes.
SHARED_AXES = frozenset(AXES) - frozenset(DATA_AXES)


@dataclass(frozen=True, slots=True)
class DataRanks:
    """This rank's place among those that read different data.

    Args:
        num_ranks: How many there are.
        rank: This rank's number among them.
        of_world: That number of every rank of the world.
    """

    num_ranks: int
    rank: int
    of_world: tuple[int, ...]

    @property
    def readers(self) -> tuple[int, ...]:
        """For each number the first rank of the world that has it; gathered rows are taken from these."""
        first: dict[int, int] = {}
        for one, number in enumerate(self.of_world):
            first.setdefault(number, one)
        return tuple(first[number] for number in range(self.num_ranks))

    @property
    def is_shared(self) -> bool:
        """Whether some ranks read the same."""
        return len(self.of_world) > self.num_ranks


def all_different(num_ranks: int, rank: int) -> DataRanks:
    """Return the place of ``rank`` where every rank reads data of its own."""
    return DataRanks(num_ranks, rank, tuple(range(num_ranks)))


def ranks_of_layout(layout: MeshLayout, rank: int) -> DataRanks:
    """Return the place of ``rank`` in a run of that layout."""
    of_world = layout.indices(*DATA_AXES)
    return DataRanks(layout.num_data_ranks, of_world[rank], of_world)


def ranks_of_run() -> DataRanks:
    """Return the place of this process in the run, whose state is built if it is not there yet."""
    from accel_state.partial_state import PartialState
    from accel_state.runtime import current_runtime

    PartialState()
    runtime = current_runtime()
    return ranks_of_layout(runtime.layout, runtime.topology.rank)


def data_ranks(mesh: Any) -> DataRanks:
    """Return how the data is shared out on ``mesh``: along its data axes, never along tensor, context or pipeline
    axes.

    Args:
        mesh: A `torch.distributed.device_mesh.DeviceMesh` with named axes, over all ranks of the world.
    """
    names: tuple[str, ...] = tuple(mesh.mesh_dim_names or ())
    num_ranks, rank = 1, 0
    for axis, name in enumerate(names):
        if name not in SHARED_AXES:
            size = mesh.size(axis)
            num_ranks, rank = num_ranks * size, rank * size + mesh.get_local_rank(name)
    data_axes = [axis for axis, name in enumerate(names) if name not in SHARED_AXES]
    shared_axes = [axis for axis, name in enumerate(names) if name in SHARED_AXES]
    world = mesh.mesh.permute(*data_axes, *shared_axes).reshape(num_ranks, -1).tolist()
    number_of = {one: number for number, ranks in enumerate(world) for one in ranks}
    return DataRanks(num_ranks, rank, tuple(number_of[one] for one in sorted(number_of)))
