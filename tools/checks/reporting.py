"""How a check reports: one line per problem, exit code 1 if there is any."""

from __future__ import annotations

from collections.abc import Sequence


def report(problems: Sequence[str]) -> int:
    """Print the problems; return the exit code."""
    for problem in problems:
        print(problem)
    return 1 if problems else 0
