"""Runs a script of others, as it is: ``peer_script_start.py [OPTION …] SCRIPT [ARGUMENT …]``.

The data sets of Accelerate's test utilities draw numbers without a seed unless given one: here the seed is then 0.
The library is the one that PYTHONPATH chooses. With ``--debug-launcher=N`` the script's `main` runs in processes
of `debug_launcher`; with ``--data``, what the script takes from the network is `peer_stand_ins`.
Each loss that `Accelerator.backward` gets is printed in full, since a script may print no more than an accuracy.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

default_rng = np.random.default_rng


def print_losses(kind: type) -> None:
    """Let `Accelerator.backward` print each loss before it differentiates it."""
    backward = kind.backward

    def print_and_differentiate(accelerator: Any, loss: torch.Tensor, **keywords: Any) -> None:
        print(f"loss {loss.item():.6f}", flush=True)
        backward(accelerator, loss, **keywords)

    kind.backward = print_and_differentiate


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", action="store_true")
    parser.add_argument("--debug-launcher", type=int, default=0)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    sys.argv[:] = options.words
    # Ranks may share an output: a line is written at once, not its end by itself.
    sys.stdout.reconfigure(write_through=False, line_buffering=True)
    script = options.words[0]
    sys.path[0] = str(Path(script).parent)
    np.random.default_rng = lambda seed=None: default_rng(0 if seed is None else seed)
    # A forked process has not imported what its PYTHONPATH would have.
    if "drop_in" in os.environ["PYTHONPATH"]:
        import accel.drop_in  # noqa: F401
    import accelerate

    print_losses(accelerate.Accelerator)
    if options.data:
        sys.path.append(str(Path(__file__).parent))
        import peer_stand_ins

        peer_stand_ins.install()
    if not options.debug_launcher:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            # Scripts that begin with the state alone: Accelerate would not read the variable for it.
            accelerate.PartialState(cpu=True)
        runpy.run_path(script, run_name="__main__")
        return
    spec = importlib.util.spec_from_file_location(Path(script).stem, script)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    accelerate.debug_launcher(module.main, num_processes=options.debug_launcher)


if __name__ == "__main__":
    main()
