"""The program that starts the ranks of a TPU VM through `torch_xla`, as ``python -P -m accel_launch.xla_spawn``.

The one other module of the package, beside `notebook`, that runs in a process with torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from accel_launch.messages import complain, warn
from accel_state.errors import ConfigError


class TrainingFunction:
    """The function of a script that trains. It is sent to the ranks, each of which loads the script on its own."""

    def __init__(
        self, target: str, name: str, arguments: Sequence[str], *, is_module: bool, num_asked: int | None
    ) -> None:
        self.target = target
        self.name = name
        self.arguments = tuple(arguments)
        self.is_module = is_module
        self.num_asked = num_asked

    def __call__(self, index: int) -> None:
        """Load the script as one rank and call its function, without arguments.

        Raises:
            ConfigError: If the script has no function of that name.
        """
        if index == 0 and self.num_asked is not None:
            _compare(self.num_asked, started=int(import_module("torch_xla.runtime").world_size()))
        self.load()()

    def load(self) -> Callable[[], Any]:
        """Return the function; the script is imported, so what stands under ``__name__ == "__main__"`` is not run."""
        sys.argv = [self.target, *self.arguments]
        path = Path(self.target).resolve()
        sys.path.insert(0, str(Path.cwd() if self.is_module else path.parent))
        module = import_module(self.target if self.is_module else path.stem)
        function = getattr(module, self.name, None)
        if not callable(function):
            raise ConfigError(
                f"`--main_training_function` is `{self.name}`, but `{self.target}` has no function of that name. "
                "Define it, without required arguments: it is called on each rank."
            )
        return function  # type: ignore[no-any-return]  # whatever the script has


def main(argv: Sequence[str] | None = None) -> int:
    """Start one rank for each device and wait for them."""
    parser = argparse.ArgumentParser(prog="accel_launch.xla_spawn")
    parser.add_argument("--function", required=True)
    parser.add_argument("--num-processes", type=int)
    parser.add_argument("--module", action="store_true")
    parser.add_argument("target")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    try:
        torch_xla = import_module("torch_xla")
    except ImportError as error:
        complain(
            f"`--tpu` needs the package `torch_xla`: {error}. Run `pip install torch_xla[tpu]` on the TPU VM."
        )
        return 1
    function = TrainingFunction(
        given.target,
        given.function,
        given.arguments,
        is_module=given.module,
        num_asked=given.num_processes,
    )
    torch_xla.launch(function, debug_single_process=given.num_processes == 1)
    return 0


def _compare(num_asked: int, *, started: int) -> None:
    if num_asked != started:
        warn(
            f"`--num_processes` is {num_asked}, but the TPU runtime started {started}: one for each device. To use "
            "fewer, set `TPU_VISIBLE_CHIPS`; `--num_processes 1` uses one."
        )


if __name__ == "__main__":
    # Under this name the ranks, which are new processes, can find the class again.
    sys.exit(import_module("accel_launch.xla_spawn").main())
