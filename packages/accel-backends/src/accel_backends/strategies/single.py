"""One process, one device: nothing is wrapped and nothing is reduced."""

from __future__ import annotations

from typing import ClassVar

from accel_backends.strategies.capabilities import Capabilities
from accel_backends.strategies.strategy import Strategy


class SingleStrategy(Strategy):
    """The strategy `single`."""

    name: ClassVar[str] = "single"
    capabilities: ClassVar[Capabilities] = Capabilities(takes_exchanged_layers=True, needs_collectives=False)
