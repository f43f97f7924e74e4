"""`python -m accel.drop_in script.py …`, or ``-m module``: run it with `accelerate` meaning accel."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from accel_state.environment import export, variable


def command(words: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return a command line without this module: Python, its options, and the remaining arguments.

    Args:
        words: The command line of a process that runs this module, the interpreter's options included.
        arguments: The arguments after the module.
    """
    options = list(words[1 : len(words) - len(arguments)])
    last = options.pop()
    # Written `-m accel.drop_in` or `-maccel.drop_in`, perhaps with options before the m, as `-um`.
    flags = last[: last.index("m")] if last.startswith("-") else options.pop()[:-1]
    return [sys.executable, *options, *([] if flags == "-" else [flags]), *arguments]


def main() -> None:
    """Replace this process by the requested one; it and its children import `bootstrap/sitecustomize.py` first."""
    if not sys.argv[1:]:
        sys.exit("usage: python -m accel.drop_in SCRIPT [ARGUMENT …], or -m MODULE, or -c CODE")
    if sys.flags.ignore_environment or sys.flags.no_site:
        sys.exit("error: `accel.drop_in` works by PYTHONPATH. Leave out Python's options -E, -I and -S.")
    folder = str(Path(__file__).with_name("bootstrap"))
    search = [folder, *filter(None, (variable("PYTHONPATH") or "").split(os.pathsep))]
    export({"PYTHONPATH": os.pathsep.join(dict.fromkeys(search))})
    line = command(sys.orig_argv, sys.argv[1:])
    sys.stdout.flush()
    os.execv(line[0], line)  # noqa: S606 -- no shell, and the program that runs already


if __name__ == "__main__":
    main()
