"""Make sure that all ranks read by the same order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from accel_ops.objects import gather_object
from accel_state.errors import ConfigError


def check_same_order(source: Any, first: Sequence[Any]) -> None:
    """Compare the beginning of the order on all ranks; a collective.

    Args:
        source: The sampler or batch sampler, for the message.
        first: The first indices, or batches of indices, that it has yielded on this rank.

    Raises:
        ConfigError: On every rank, if they differ.
    """
    digest = hashlib.sha256(repr(first).encode()).hexdigest()
    if len(set(gather_object([digest]))) > 1:
        raise ConfigError(
            f"The sampler `{type(source).__name__}` yields different indices on each process, so samples would be read "
            "twice or never. Let it draw from an attribute `generator`, which all processes are given in the same "
            "state, or from a seed of its own and `set_epoch`; or pass `dispatch_batches=True`."
        )
