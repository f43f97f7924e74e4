"""Relative links lead to files, tests that pages name are there, and no file speaks of one person's machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from tools.site.places import is_made
from tools.workspace import ROOT

FORBIDDEN = (
    r"(?<![\w./])/(?:home|Users)/(?!you\b|user\b|me\b|<)\w+",
    r"(?<![\w./-])/(?:root|work|workspace|mnt|scratch)/[\w.]",
    r"(?<![\w./-])/(?:tmp/w\b|opt/(?:wheels|pypi))(?!\.)",
    r"[A-Z]:\\\\?Users\\",
    r"^(?:<{7} |>{7} |={7}$)",  # a merge conflict
)
NOT_READ = (":!LICENSE", ":!packages/*/LICENSE", ":!tools/checks/text.py", ":!tools/tests/test_checks.py")
LINK = re.compile(r"\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+<?([^\s>]+)>?", re.MULTILINE)
CODE = re.compile(r"^( {0,3}|\s*- )(```+|~~~+).*?^\s*\2\s*$|`+[^`\n]+`+", re.MULTILINE | re.DOTALL)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)
TEST = re.compile(r"`([\w/-]+\.py)::(\w+)`")


def of_one_machine(root: Path) -> list[str]:
    """Return the lines that name a folder of one machine, or are left of a merge."""
    command = ["git", "grep", "-nIP", "--untracked", "|".join(FORBIDDEN), "--", ".", *NOT_READ]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return [*found.stdout.splitlines(), *found.stderr.splitlines()]


def dead_links(root: Path) -> Iterator[str]:
    """Yield the relative links of Markdown files to nothing, and the tests that they name and that are not there.

    Building the site checks the headings that links name.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    for page in (root / line for line in listed.splitlines() if (root / line).is_file()):
        text = page.read_text(encoding="utf-8")
        for link in LINK.findall(CODE.sub("", text)):
            target = urllib.parse.unquote("".join(link)).partition("#")[0]
            there = page.parent / target
            is_elsewhere = OUTSIDE.match("".join(link)) or is_made(
                Path(os.path.relpath(there, root)).as_posix()
            )
            if not is_elsewhere and not there.exists():
                yield f"{page.relative_to(root)}: `{target}` leads nowhere"
        for file, test in TEST.findall(text):
            if not (root / file).is_file() or f"def {test}(" not in (root / file).read_text(encoding="utf-8"):
                yield f"{page.relative_to(root)}: there is no test `{file}::{test}`"


def problems(root: Path) -> list[str]:
    """Return what is wrong in the texts of a checkout."""
    return [*of_one_machine(root), *dead_links(root)]


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT)) or 0)
