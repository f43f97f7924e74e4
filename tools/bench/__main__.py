"""``python -m tools.bench [CASE …]``, inside the environment that ``tools/dev.py bench`` makes."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version

from tools.bench.cases import bigmodel, checkpoints, collectives, loops, parallel_steps, sharded_checkpoints
from tools.bench.measure import Case, as_table, measure

MODULES = (loops, collectives, checkpoints, sharded_checkpoints, parallel_steps, bigmodel)
CASES: dict[str, Case] = {name: case for module in MODULES for name, case in module.CASES.items()}


def main(words: Sequence[str]) -> int:
    """Measure the cases named, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args(words)
    if unknown := sorted(set(arguments.cases) - set(CASES)):
        parser.error(f"unknown case `{unknown[0]}`; known: {', '.join(CASES)}")
    about = {"python": platform.python_version(), "machine": platform.platform()}
    about |= {name: version(name) for name in ("accel", "accelerate", "torch")}
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    for name in arguments.cases or CASES:
        numbers = measure(CASES[name], num_rounds=arguments.rounds)
        print(f"\n{name}: {as_table(CASES[name], numbers)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
