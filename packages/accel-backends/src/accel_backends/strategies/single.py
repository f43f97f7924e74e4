"""One process, one device: nothing is wrapped and nothing is reduced."""

from __future__ import annotations

from typing import ClassVar

from accel_backends.strategies.replicated import ReplicatedStrategy


class SingleStrategy(ReplicatedStrategy):
    """The strategy `single`."""

    name: ClassVar[str] = "single"
