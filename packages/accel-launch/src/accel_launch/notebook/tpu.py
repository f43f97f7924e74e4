"""Functions of a notebook on the cores of a TPU, through ``torch_xla``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from accel_state.environment import patch_environment

# ``torch_xla`` pickles what it calls even for forks, which have this already.
_of_cores: list[Callable[[], Any]] = []


def _call_on_core(index: int) -> None:
    _of_cores[-1]()


def run_on_tpu(
    function: Callable[..., Any], args: Sequence[Any], *, num_processes: int | None, mixed_precision: str
) -> None:
    """Run the function on each core of this machine; without forks for one process."""
    import torch_xla

    _of_cores.append(partial(function, *args))
    try:
        with patch_environment(ACCELERATE_MIXED_PRECISION=mixed_precision):
            # Its default, `spawn`, starts processes that do not know what the notebook has defined.
            torch_xla.launch(_call_on_core, start_method="fork", debug_single_process=num_processes == 1)
    finally:
        _of_cores.pop()
