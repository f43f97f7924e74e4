"""``python -m tools.bench [CASE …]``, inside the environment that ``tools/dev.py bench`` makes."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from tools.bench.case import Case
from tools.bench.measure import as_table, measure

CASES = sorted(
    file.stem for file in Path(__file__).with_name("cases").glob("*.py") if file.stem != "__init__"
)


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
        case: Case = import_module(f"tools.bench.cases.{name}").case
        measurements = measure(case, num_rounds=arguments.rounds)
        print(f"\n{name}: {as_table(case, measurements)}", flush=True)
        results[name] = {"unit": case.unit, "results": list(map(asdict, measurements))}
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"circumstances": about, "cases": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
