"""How tensors reach the other ranks: the protocol, and one file for each implementation."""

from accel_ops.transport.protocol import Collectives, Reduction, Transport
from accel_ops.transport.selection import current_rank, current_transport, use_transport

__all__ = ["Collectives", "Reduction", "Transport", "current_rank", "current_transport", "use_transport"]
