"""The data ranks of a run: which ranks read the same data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accel_state.mesh_layout import AXES, DATA_AXES, MeshLayout

#: Axes of a mesh whose ranks work on the same samples together; all others, of any name, are data axes.
SHARED_AXES = frozenset(AXES) - frozenset(DATA_AXES)


@dataclass(frozen=True, slots=True)
class DataRanks:
    """The data-parallel rank of this process: ranks of the world with the same one read the same data.

    Args:
        num_ranks: Data-parallel ranks.
        rank: The data-parallel rank of this process.
        of_world: The data-parallel rank of every rank of the world; empty if other ranks are unknown.
        share_sequences: Whether ranks with the same one are CP or SP ranks, with shards of the same sequences.
    """

    num_ranks: int
    rank: int
    of_world: tuple[int, ...]
    share_sequences: bool = False

    @property
    def representatives(self) -> tuple[int, ...]:
        """For each data-parallel rank the first rank of the world with it. Gathered rows are taken from these."""
        first: dict[int, int] = {}
        for rank, number in enumerate(self.of_world):
            first.setdefault(number, rank)
        return tuple(first[number] for number in range(self.num_ranks))

    @property
    def is_shared(self) -> bool:
        """Whether some ranks of the world read the same data."""
        return len(self.of_world) > self.num_ranks


def all_different(num_ranks: int, rank: int) -> DataRanks:
    """Return the data ranks of a run whose ranks all read different data."""
    return DataRanks(num_ranks, rank, tuple(range(num_ranks)))


def ranks_of_layout(layout: MeshLayout, rank: int) -> DataRanks:
    """Return the data ranks of a run of that layout, as seen by ``rank``."""
    of_world = layout.indices(*DATA_AXES)
    return DataRanks(layout.num_data_ranks, of_world[rank], of_world, layout.cp * layout.sp > 1)


def ranks_of_run() -> DataRanks:
    """Return the data ranks of this run; builds its state if there is none yet."""
    from accel_state.runtime import get_or_create_runtime

    runtime = get_or_create_runtime(cpu=False, options={})
    layout = runtime.layout
    # A script may have assigned a `num_processes` that is below its rank.
    return ranks_of_layout(layout, runtime.topology.rank % layout.world_size)


def data_ranks(mesh: Any) -> DataRanks:
    """Return the data ranks of ``mesh``: the data is divided along its data axes, not along tensor, context or
    pipeline axes.

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
    groups = mesh.mesh.permute(*data_axes, *shared_axes).reshape(num_ranks, -1).tolist()
    number_of = {member: number for number, group in enumerate(groups) for member in group}
    share_sequences = any(mesh.size(axis) > 1 for axis, name in enumerate(names) if name in ("cp", "sp"))
    of_world = tuple(number_of[member] for member in sorted(number_of))
    return DataRanks(num_ranks, rank, of_world, share_sequences)
