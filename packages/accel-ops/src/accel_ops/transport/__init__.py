"""How tensors reach the other ranks: the protocol, and one file for each way."""

from accel_ops.transport.protocol import Transport
from accel_ops.transport.selection import current_transport, use_transport

__all__ = ["Transport", "current_transport", "use_transport"]
