"""One seed for every random number generator."""

from __future__ import annotations

import random

import numpy as np
import torch

from accel_ops.transport import current_rank
from accel_state.environment import read
from accel_state.errors import ConfigError
from accel_state.runtime import current_runtime, has_runtime


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's ``random``, NumPy and torch on the CPU and on every accelerator.

    Args:
        seed: Between 0 and 2**32 - 1 (NumPy's range).
        device_specific: Add the rank, so that the ranks draw different numbers. Ranks that work on the same
            samples add the same: with tensor, context or sequence parallelism their place among the data. Before
            the state is built, the rank is that of the process group or, without one, of the environment, and
            the sizes of the mesh are those of the environment.
        deterministic: Also let torch use deterministic algorithms only; an operation that has none then
            raises.

    Raises:
        ConfigError: If the seed is no such number. No generator has been seeded then.
    """
    if not isinstance(seed, (int, np.integer)):
        raise ConfigError(f"`seed` must be an int, got {seed!r} of type `{type(seed).__name__}`.")
    seed = int(seed)
    if device_specific:
        seed += _seed_index(current_rank())
    if not 0 <= seed < 2**32:
        raise ConfigError(f"`seed` must lie between 0 and {2**32 - 1}, got {seed}.")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if has_runtime():
        # Devices that torch does not know of itself, such as XLA's.
        current_runtime().device_backend.rng.seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def _seed_index(rank: int) -> int:
    if has_runtime():
        return current_runtime().layout.seed_index(rank)
    if not read("use_parallelism_config"):
        return rank
    from accel_state.parallelism_config import ParallelismConfig

    layout = ParallelismConfig().layout
    return rank if layout.world_size == 1 else layout.seed_index(rank)
