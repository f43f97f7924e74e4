"""``python -m tools.bench [CASE …]``, inside the environment that ``tools/dev.py bench`` makes."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from tools.bench.cases import bigmodel, checkpoints, collectives, loops, parallel_steps, sharded_checkpoints
from tools.bench.measure import Case, as_table, measure

MODULES = (loops, collectives, checkpoints, sharded_checkpoints, parallel_steps, bigmodel)
CASES: dict[str, Case] = {name: case for module in MODULES for name, case in module.CASES.items()}


def main(words: Sequence[str]) -> int:
    """Measure the cases named, print the tables, and write the numbers if requested."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    if unknown := sorted(set(arguments.cases) - set(CASES)):
        parser.error(f"unknown case `{unknown[0]}`; known: {', '.join(CASES)}")
    about = {"python": platform.python_version(), "machine": platform.platform()}
    about |= {name: version(name) for name in ("accel", "accelerate", "torch")}
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    results = {}
    for name in arguments.cases or CASES:
        results[name] = measure(CASES[name], num_rounds=arguments.rounds)
        print(f"\n{name}: {as_table(CASES[name], results[name])}", flush=True)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"circumstances": about, "cases": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
