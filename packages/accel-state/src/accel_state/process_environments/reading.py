"""Reading ranks and sizes out of a mapping, with errors that name the variable."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.errors import ConfigError
from accel_state.topology import Topology

DEFAULT_PORT = 29500


def is_set(environ: Mapping[str, str], variable: str) -> bool:
    """Whether ``variable`` is there and not blank."""
    return bool(environ.get(variable, "").strip())


def optional_int(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the whole number in ``variable``, None where it is unset."""
    if not is_set(environ, variable):
        return None
    try:
        return int(environ[variable])
    except ValueError:
        raise ConfigError(f"`{variable}` is `{environ[variable]}`, but it must be a whole number.") from None


def required_int(environ: Mapping[str, str], variable: str, *, launcher: str, because: str) -> int:
    """Return the whole number in ``variable``; where it is unset, say which other variable asks for it."""
    value = optional_int(environ, variable)
    if value is None:
        raise ConfigError(
            f"`{variable}` is not set, although `{because}` is. {launcher} sets both; set the missing one, "
            f"or unset `{because}` to run a single process."
        )
    return value


def master_port(environ: Mapping[str, str]) -> int | None:
    """Return the port in ``MASTER_PORT``, None where it is unset."""
    port = optional_int(environ, "MASTER_PORT")
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"`MASTER_PORT` is `{port}`, but it must be a port number between 0 and 65535.")
    return port


def check_within(index_variable: str, index: int, count_variable: str, count: int) -> None:
    """Refuse a rank that does not lie below its size, naming the variables of both."""
    if count < 1:
        raise ConfigError(f"`{count_variable}` is `{count}`, but it must be at least 1.")
    if not 0 <= index < count:
        raise ConfigError(
            f"`{index_variable}` is `{index}`, but it must lie between 0 and {count - 1}, "
            f"because `{count_variable}` is `{count}`."
        )


def ranks_topology(
    environ: Mapping[str, str],
    *,
    source: str,
    launcher: str,
    rank: str,
    world_size: str,
    local_rank: str,
    local_world_size: str,
) -> Topology:
    """Return the topology of a launcher that sets four variables: rank and size, in all and on this machine.

    Machines are taken to hold equally many consecutive ranks, as MPI places them by default; the topology says
    so, for the ranks to find out when they can. Ranks on one machine meet on the loopback address; on several,
    ``MASTER_ADDR`` has to say where.
    """
    present = next(name for name in (rank, world_size, local_rank, local_world_size) if is_set(environ, name))

    def number(variable: str) -> int:
        return required_int(environ, variable, launcher=launcher, because=present)

    ranks, local = (number(rank), number(world_size)), (number(local_rank), number(local_world_size))
    check_within(rank, ranks[0], world_size, ranks[1])
    check_within(local_rank, local[0], local_world_size, local[1])
    if local[1] > ranks[1]:
        raise ConfigError(
            f"`{local_world_size}` is `{local[1]}`, but it must not exceed `{world_size}` (`{ranks[1]}`)."
        )
    num_nodes = -(-ranks[1] // local[1])
    return Topology(
        *ranks,
        *local,
        node_rank=min(ranks[0] // local[1], num_nodes - 1),
        num_nodes=num_nodes,
        source=source,
        master_addr=environ.get("MASTER_ADDR") or ("127.0.0.1" if num_nodes == 1 else None),
        master_port=master_port(environ) or DEFAULT_PORT,
        is_node_rank_assumed=num_nodes > 1,
    )
