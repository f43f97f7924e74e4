"""`MeshLayout`: the axes of parallelism of a run, and the coordinates of each rank on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Self

from accel_state.errors import ConfigError, UnknownNameError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

#: All axes, outermost first: neighbors on the last axis share a machine, and communicate most.
AXES = ("pp", "dp_replicate", "dp_shard", "cp", "sp", "tp")
#: Ranks that differ on these read different samples.
DATA_AXES = ("dp_replicate", "dp_shard")
#: Ranks that differ on these compute the loss of different tokens.
LOSS_AXES = (*DATA_AXES, "cp", "sp")
#: Ranks that differ on these can have different shards of a parameter.
SHARD_AXES = ("dp_shard", "cp", "sp")
#: Ranks that differ on these have different random states.
SEED_AXES = ("pp", *DATA_AXES)
#: The axes of the expert view: ``ep`` divides the ranks of one replica.
EXPERT_AXES = ("pp", "dp_replicate", "edp_shard", "ep")

_UNIONS = {"dp": DATA_AXES, "dp_shard_cp": ("dp_shard", "cp"), "dp_cp": (*DATA_AXES, "cp"), "loss": LOSS_AXES}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLayout:
    """How the ranks of a run are arranged along the axes of parallelism. An axis that is not used has size 1.

    Args:
        pp: Pipeline stages.
        dp_replicate: Replicas of the model.
        dp_shard: Ranks over which each replica is sharded, which read different batches.
        cp: Ranks over which each sequence is sharded, by context parallelism.
        sp: Ranks over which each sequence is sharded, by attention heads (Ulysses).
        tp: Ranks over which each layer is sharded.
        ep: Ranks over which the experts of a layer are sharded. They are not additional: this must divide
            ``dp_shard * cp * sp * tp``.

    Raises:
        ConfigError: If a size is not an integer of at least 1, or ``ep`` does not divide that product.
    """

    pp: int = 1
    dp_replicate: int = 1
    dp_shard: int = 1
    cp: int = 1
    sp: int = 1
    tp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for axis in (*AXES, "ep"):
            check_size(axis, getattr(self, axis))
        if self._replica_size % self.ep:
            raise ConfigError(
                f"`ep` must divide `dp_shard * cp * sp * tp`, which is {self._replica_size}, got {self.ep}."
            )

    @classmethod
    def of_replicas(cls, num_ranks: int) -> Self:
        """Return the layout of pure data parallelism: every rank has a replica of the model and different data."""
        return cls(dp_replicate=num_ranks)

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each axis, outermost first."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def expert_sizes(self) -> dict[str, int]:
        """The size of each axis of the expert view, outermost first."""
        return {
            "pp": self.pp,
            "dp_replicate": self.dp_replicate,
            "edp_shard": self._replica_size // self.ep,
            "ep": self.ep,
        }

    @property
    def world_size(self) -> int:
        """Total number of ranks."""
        return prod(self.sizes.values())

    @property
    def num_data_ranks(self) -> int:
        """Ranks that read different samples."""
        return self.size(*DATA_AXES)

    @property
    def num_loss_ranks(self) -> int:
        """Ranks over which the loss of a step is averaged."""
        return self.size(*LOSS_AXES)

    @property
    def num_param_shards(self) -> int:
        """Number of shards of a sharded parameter."""
        return self.size(*SHARD_AXES)

    @property
    def num_seeds(self) -> int:
        """Ranks that have different random states."""
        return self.size(*SEED_AXES)

    def seed_index(self, rank: int) -> int:
        """Return the index of the random state of ``rank``.

        Ranks that work on the same samples share it, unless they run different pipeline stages.
        Without a pipeline it is the data rank.
        """
        return self.index(rank, *SEED_AXES)

    def rank_of_seed(self, index: int) -> int:
        """Return the first rank with that `seed_index`."""
        return self.indices(*SEED_AXES).index(index)

    def size(self, *axes: str) -> int:
        """Return the product of the sizes of ``axes``, of either view."""
        view = self._view(axes)
        return prod(view[axis] for axis in axes)

    def coordinate(self, rank: int) -> dict[str, int]:
        """Return the coordinate of ``rank`` on each axis."""
        return self._coordinate(rank, self.sizes)

    def index(self, rank: int, *axes: str) -> int:
        """Return the index of ``rank`` along ``axes``, counted from the outermost axis."""
        view, number = self._view(axes), 0
        for axis, coordinate in self._coordinate(rank, view).items():
            if axis in axes:
                number = number * view[axis] + coordinate
        return number

    def indices(self, *axes: str) -> tuple[int, ...]:
        """Return the `index` of every rank."""
        return tuple(self.index(rank, *axes) for rank in range(self.world_size))

    def group_of(self, rank: int, *axes: str) -> tuple[int, ...]:
        """Return the group of ``rank`` along ``axes``: the ranks with its coordinates on all other axes, in order."""
        self._check_rank(rank)
        return next(group for group in self.groups(*axes) if rank in group)

    def groups(self, *axes: str) -> tuple[tuple[int, ...], ...]:
        """Return all groups of ranks along ``axes``; every rank is in one of them."""
        other_axes = [axis for axis in self._view(axes) if axis not in axes]
        groups: dict[int, list[int]] = {}
        for rank, number in enumerate(self.indices(*other_axes)):
            groups.setdefault(number, []).append(rank)
        return tuple(map(tuple, groups.values()))

    def mesh(self, device_type: str, axes: Iterable[str] = AXES) -> DeviceMesh:
        """Build a mesh over all ranks, with process groups. Every rank must call this; it blocks until all have.

        Args:
            device_type: Of the devices that the ranks run on.
            axes: The axes of the mesh; omitted axes must have size 1.

        Returns:
            A new mesh with ``axes`` in the order of `AXES`. The unions ``dp``, ``dp_shard_cp``, ``dp_cp`` and
            ``loss`` can also be looked up by name, if any of their axes are in ``axes``.
        """
        from accel_state.mesh_groups import add_union, build_mesh

        wanted = set(axes)
        mesh = build_mesh(device_type, {axis: size for axis, size in self.sizes.items() if axis in wanted})
        for name, members in _UNIONS.items():
            present = tuple(axis for axis in members if axis in wanted)
            if present:
                add_union(mesh[present], name)
        return mesh

    def expert_mesh(self, device_type: str) -> DeviceMesh:
        """Build a mesh of the expert view, with process groups, over the same ranks.

        Every rank must call this; it blocks until all have. See `mesh`.
        """
        from accel_state.mesh_groups import build_mesh

        return build_mesh(device_type, self.expert_sizes)

    @property
    def _replica_size(self) -> int:
        """Ranks of one stage of one replica of the model."""
        return self.dp_shard * self.cp * self.sp * self.tp

    def _view(self, axes: Iterable[str]) -> Mapping[str, int]:
        """Return the view that has all of ``axes``."""
        wanted = set(axes)
        for view in (self.sizes, self.expert_sizes):
            if wanted <= view.keys():
                return view
        known = {*AXES, *EXPERT_AXES}
        for axis in sorted(wanted - known):
            raise UnknownNameError.of("axis", axis, known)
        dense, expert = sorted(wanted - {*EXPERT_AXES})[0], sorted(wanted - {*AXES})[0]
        raise ConfigError(
            f"`{dense}` and `{expert}` belong to different views of the ranks. Use the axes of one view."
        )

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise ConfigError(f"`rank` must lie between 0 and {self.world_size - 1}, got {rank}.")

    def _coordinate(self, rank: int, view: Mapping[str, int]) -> dict[str, int]:
        self._check_rank(rank)
        coordinates: dict[str, int] = {}
        for axis in reversed(tuple(view)):
            rank, coordinates[axis] = divmod(rank, view[axis])
        return {axis: coordinates[axis] for axis in view}


def check_size(name: str, size: object) -> int:
    """Return the size of an axis.

    Raises:
        ConfigError: If it is not an integer of at least 1.
    """
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f"`{name}` must be a whole number of at least 1, got {size!r}.")
    return size
