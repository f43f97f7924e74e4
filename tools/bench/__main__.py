"""``python -m tools.bench [CASE …]``, inside the environment that ``tools/dev.py bench`` makes."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from tools.bench.case import Case
from tools.bench.measure import as_data, as_table, measure, obstacle_to
from tools.bench.profile import profile_step, profile_table

FOLDER = Path(__file__).with_name("cases")


def known_cases() -> list[str]:
    """Return the names of all cases."""
    return sorted(file.stem for file in FOLDER.glob("*.py") if file.stem != "__init__")


def load_case(name: str) -> Case:
    """Return the case whose file is ``tools/bench/cases/<name>.py``."""
    case: Case = import_module(f"tools.bench.cases.{name}").case
    return case


def circumstances() -> dict[str, str]:
    """Return what a reader needs to judge the numbers."""
    names = ("accel", "accelerate", "torch")
    return {
        "python": platform.python_version(),
        "machine": platform.platform(),
        **{n: version(n) for n in names},
    }


def main(words: Sequence[str]) -> int:
    """Measure the cases named, print the tables, and write the numbers if requested."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"any of: {', '.join(known_cases())}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(words)
    unknown = sorted(set(arguments.cases) - set(known_cases()))
    if unknown:
        parser.error(f"unknown case `{unknown[0]}`; known: {', '.join(known_cases())}")
    about = circumstances()
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    results: dict[str, object] = {}
    for name in arguments.cases or ([] if arguments.profile else known_cases()):
        case = load_case(name)
        obstacle = obstacle_to(case)
        if obstacle:
            print(f"\n{name}: {case.title}\n  not measured: {obstacle}", flush=True)
            results[name] = {"title": case.title, "not_measured": obstacle}
            continue
        measurements = measure(case, num_rounds=arguments.rounds)
        print(f"\n{name}: {as_table(case, measurements)}", flush=True)
        results[name] = as_data(case, measurements)
    if arguments.profile:
        spent = profile_step(num_rounds=arguments.rounds)
        print(f"\n{profile_table(spent)}", flush=True)
        results["profile"] = spent
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"circumstances": about, "cases": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
