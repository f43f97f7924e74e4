"""Nothing in the project speaks of one person's machine, and nothing is pasted in unfinished."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tools.checks.reporting import report
from tools.workspace import ROOT

FORBIDDEN = {
    r"(?<![\w./])/(?:home|Users)/(?!you\b|user\b|me\b|<)\w+": "a path of one person's home",
    r"(?<![\w./-])/(?:root|work|workspace|mnt|scratch)/[\w.]": "a path of one machine",
    r"(?<![\w./-])/(?:tmp/w\b|opt/(?:wheels|pypi))(?!\.)": "a path of one machine; tests take `tmp_path`",
    r"[A-Z]:\\\\?Users\\": "a path of one person's home",
    r"^(?:<{7} |>{7} |={7}$)": "a merge conflict",
}
"""Patterns that no file may contain, and their meaning."""

TEXT = {".py", ".md", ".toml", ".txt", ".yml", ".yaml", ".json", ".cfg", ".sh", ".csv", ""}
LEFT_OUT = {".git", ".hypothesis", ".venv", ".venvs", "build", "dist", "runs", "__pycache__"}
NOT_READ = {"tools/checks/origin.py", "tools/tests/checks/test_origin.py", "LICENSE"}
"""The patterns, their test, and the license."""


def project_files(root: Path) -> Iterator[Path]:
    """Yield the text files of the project: what git tracks or would track; without git, all but outputs."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode == 0:
        candidates = [root / line for line in listed.stdout.splitlines()]
    else:
        candidates = [file for file in root.rglob("*") if not LEFT_OUT & set(file.relative_to(root).parts)]
    for file in sorted(candidates):
        is_ours = file.relative_to(root).as_posix() not in NOT_READ
        if is_ours and file.suffix in TEXT and file.is_file():
            yield file


def problems(root: Path) -> list[str]:
    """Return every forbidden text in the files of ``root``."""
    patterns = [(re.compile(pattern), reason) for pattern, reason in FORBIDDEN.items()]
    found = []
    for file in project_files(root):
        for number, line in enumerate(
            file.read_text(encoding="utf-8", errors="replace").splitlines(), start=1
        ):
            for pattern, reason in patterns:
                match = pattern.search(line)
                if match is not None:
                    found.append(f"{file.relative_to(root)}:{number}: `{match[0]}`: {reason}")
    return found


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
