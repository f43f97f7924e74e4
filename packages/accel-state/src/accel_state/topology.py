"""`Topology`: the rank of this process and of its machine, and the checks of the variables that set them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from accel_state.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Topology:
    """The rank of a process and the size of the run, on its machine and in all.

    ``source`` names the process environment. ``master_addr`` and ``master_port`` are the rendezvous
    of the ranks, None if the environment does not set it. ``is_node_rank_assumed`` is true if the environment does not
    number the machines, so that each is assumed to have consecutive ranks.

    Raises:
        ConfigError: If an index is not below its size.
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
    """Check that a rank is below its size.

    Raises:
        ConfigError: If it is not, or the size is below 1; the message names both.
    """
    if count < 1:
        raise ConfigError(f"`{count_name}` is `{count}`, but it must be at least 1.")
    if not 0 <= index < count:
        raise ConfigError(
            f"`{index_name}` is `{index}`, but it must lie between 0 and {count - 1}, because `{count_name}` is "
            f"`{count}`."
        )


def is_set(environ: Mapping[str, str], variable: str) -> bool:
    """Return whether ``variable`` is set and not blank."""
    return bool(environ.get(variable, "").strip())


def optional_int(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the integer in ``variable``, None if it is unset.

    Raises:
        ConfigError: If it is not an integer.
    """
    if not is_set(environ, variable):
        return None
    try:
        return int(environ[variable])
    except ValueError:
        raise ConfigError(f"`{variable}` is `{environ[variable]}`, but it must be a whole number.") from None


def required_int(environ: Mapping[str, str], variable: str, *, launcher: str, because: str) -> int:
    """Return the integer in ``variable``, which ``launcher`` sets together with the variable ``because``.

    Raises:
        ConfigError: If it is unset or not an integer.
    """
    value = optional_int(environ, variable)
    if value is None:
        raise ConfigError(
            f"`{variable}` is not set, although `{because}` is. {launcher} sets both; set the missing one, "
            f"or unset `{because}` to run a single process."
        )
    return value
