"""Which of how many processes this one is, on which of how many machines."""

from __future__ import annotations

from dataclasses import dataclass

from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """The rank of a process and the size of the run, on its machine and in all.

    ``source`` names the process environment that they come from; ``master_addr`` and ``master_port`` are where the
    ranks meet, None where the environment does not say. ``is_node_rank_assumed`` is set where the environment
    does not tell which machine this is, and machines are taken to hold consecutive ranks.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    num_nodes: int = 1
    source: str = "plain"
    master_addr: str | None = None
    master_port: int | None = None
    is_node_rank_assumed: bool = False

    def __post_init__(self) -> None:
        check_within("rank", self.rank, "world_size", self.world_size)
        check_within("local_rank", self.local_rank, "local_world_size", self.local_world_size)
        check_within("node_rank", self.node_rank, "num_nodes", self.num_nodes)
        if self.local_world_size > self.world_size:
            raise ConfigError(
                f"`local_world_size` must not exceed {self.world_size} (`world_size`), "
                f"got {self.local_world_size}."
            )


def check_within(index_name: str, index: int, count_name: str, count: int) -> None:
    """Refuse a rank that does not lie below its size, naming both.

    Raises:
        ConfigError: If it does not, or the size is no size.
    """
    if count < 1:
        raise ConfigError(f"`{count_name}` is `{count}`, but it must be at least 1.")
    if not 0 <= index < count:
        raise ConfigError(
            f"`{index_name}` is `{index}`, but it must lie between 0 and {count - 1}, because `{count_name}` is "
            f"`{count}`."
        )
