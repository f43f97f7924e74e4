"""Functions of a notebook on the cores of a TPU, through ``torch_xla``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from accel_state.environment import patch_environment


class CoreFunction:
    """The function of a TPU's cores. ``torch_xla`` pickles it even for forks, which have it already: by its number.

    A context manager: within it, processes that are forked know the function.
    """

    _known: ClassVar[dict[int, Callable[[], Any]]] = {}

    def __init__(
        self, function: Callable[..., Any], args: Sequence[Any], variables: Mapping[str, str]
    ) -> None:
        self.number = id(self)
        self._call = partial(_call_with, dict(variables), function, *args)

    def __enter__(self) -> CoreFunction:
        self._known[self.number] = self._call
        return self

    def __exit__(self, *exception: object) -> None:
        del self._known[self.number]

    def __getstate__(self) -> dict[str, int]:
        return {"number": self.number}

    def __call__(self, index: int) -> None:
        """Call the function as core ``index``."""
        self._known[self.number]()


def _call_with(variables: Mapping[str, str], function: Callable[..., Any], *args: Any) -> None:
    with patch_environment(**variables):
        function(*args)


def run_on_tpu(
    function: Callable[..., Any], args: Sequence[Any], *, num_processes: int | None, mixed_precision: str
) -> None:
    """Run the function on each core of this machine; without forks for one process."""
    import torch_xla

    with CoreFunction(function, args, {"ACCELERATE_MIXED_PRECISION": mixed_precision}) as on_core:
        # Its default, `spawn`, starts processes that do not know what the notebook has defined.
        torch_xla.launch(on_core, start_method="fork", debug_single_process=num_processes == 1)
