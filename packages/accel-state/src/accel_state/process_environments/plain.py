"""A process that was started on its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from accel_state.errors import ConfigError
from accel_state.process_environments.variables import optional_int
from accel_state.topology import Topology


class PlainEnvironment:
    """The last in the list: always there, one process."""

    name: ClassVar[str] = "plain"

    def detect(self, environ: Mapping[str, str]) -> bool:
        return True

    def topology(self, environ: Mapping[str, str]) -> Topology:
        world_size = optional_int(environ, "WORLD_SIZE")
        if world_size is not None and world_size != 1:
            raise ConfigError(
                f"`WORLD_SIZE` is `{world_size}`, but `RANK` and `LOCAL_RANK` are not set. Start the script "
                "with `accel launch` or `torchrun`, or unset `WORLD_SIZE` to run a single process."
            )
        return Topology(source=self.name)
