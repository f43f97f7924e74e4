"""Processes started by torchrun, `accel launch`, or another launcher that sets ``RANK`` and its companions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.topology import Topology, check_within, is_set, optional_int, required_int


class TorchrunEnvironment:
    """``RANK``, ``WORLD_SIZE``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``.

    https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """

    name: ClassVar[str] = "torchrun"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return is_set(environ, "RANK") or is_set(environ, "LOCAL_RANK")

    def topology(self, environ: Mapping[str, str]) -> Topology:
        because = "RANK" if is_set(environ, "RANK") else "LOCAL_RANK"
        rank = required_int(environ, "RANK", launcher="torchrun", because=because)
        world_size = required_int(environ, "WORLD_SIZE", launcher="torchrun", because=because)
        check_within("RANK", rank, "WORLD_SIZE", world_size)
        local_rank = self._local_rank(environ, world_size)
        local_world_size = self._local_world_size(environ, rank, local_rank, world_size)
        check_within("LOCAL_RANK", local_rank, "LOCAL_WORLD_SIZE", local_world_size)
        num_nodes = optional_int(environ, "GROUP_WORLD_SIZE") or -(-world_size // local_world_size)
        node_rank = optional_int(environ, "GROUP_RANK")
        if node_rank is None:
            node_rank = rank // local_world_size
        check_within("GROUP_RANK", node_rank, "GROUP_WORLD_SIZE", num_nodes)
        return Topology(
            rank,
            world_size,
            local_rank,
            local_world_size,
            node_rank,
            num_nodes,
            source=self.name,
            master_addr=environ.get("MASTER_ADDR") or None,
            master_port=read("master_port", environ),
        )

    def _local_rank(self, environ: Mapping[str, str], world_size: int) -> int:
        if world_size == 1 and not is_set(environ, "LOCAL_RANK"):
            return 0
        return required_int(environ, "LOCAL_RANK", launcher="torchrun", because="RANK")

    def _local_world_size(
        self, environ: Mapping[str, str], rank: int, local_rank: int, world_size: int
    ) -> int:
        # DeepSpeed's launcher calls it LOCAL_SIZE.
        for variable in ("LOCAL_WORLD_SIZE", "LOCAL_SIZE"):
            size = optional_int(environ, variable)
            if size is not None:
                check_within("LOCAL_RANK", local_rank, variable, size)
                if size > world_size:
                    raise ConfigError(
                        f"`{variable}` is `{size}`, but it must not exceed `WORLD_SIZE` (`{world_size}`)."
                    )
                return size
        if rank != local_rank:
            raise ConfigError(
                f"`LOCAL_WORLD_SIZE` is not set, although `RANK` (`{rank}`) and `LOCAL_RANK` "
                f"(`{local_rank}`) differ, which means several machines. Set it to the number of "
                "processes on this machine."
            )
        return world_size
