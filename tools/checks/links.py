"""Every relative link in a Markdown file leads to a file, and to a heading of it where it names one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from tools.checks.reporting import report
from tools.site.places import is_made
from tools.workspace import ROOT

LINK = re.compile(
    r"\[[^\]\n]*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)|^\[[^\]]+\]:\s+<?([^\s>]+)>?", re.MULTILINE
)
CODE = re.compile(r"^( {0,3}|\s*- )(```+|~~~+).*?^\s*\2\s*$|`+[^`\n]+`+", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6}\s+(.+?)\s*#*$", re.MULTILINE)
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)


def pages(root: Path) -> list[Path]:
    """Return the Markdown files that git knows or would take in."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    return sorted(root / line for line in listed.splitlines() if (root / line).is_file())


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(without_code(page.read_text(encoding="utf-8"), keep_inline=True)):
        words = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        anchor, number = words, 0
        while anchor in found:
            number += 1
            anchor = f"{words}-{number}"
        found.add(anchor)
    return found


def without_code(text: str, *, keep_inline: bool = False) -> str:
    """Return `text` without its code, whose brackets are no links; line breaks stay."""

    def blank(code: re.Match[str]) -> str:
        return code[0] if keep_inline and not code[2] else "\n" * code[0].count("\n")

    return CODE.sub(blank, text)


def problems_of(page: Path, root: Path) -> Iterator[str]:
    """Yield a line for each link of `page` that leads nowhere."""
    text = without_code(page.read_text(encoding="utf-8"))
    for link in LINK.finditer(text):
        target = link[1] or link[2]
        if OUTSIDE.match(target):
            continue
        path, _, anchor = urllib.parse.unquote(target).partition("#")
        place = f"{page.relative_to(root)}:{text.count(chr(10), 0, link.start()) + 1}"
        there = root / path.lstrip("/") if path.startswith("/") else page.parent / path if path else page
        if is_made(Path(os.path.relpath(there, root)).as_posix()):
            continue  # building the site checks links to those
        if not there.exists():
            yield f"{place}: `{target}` leads nowhere"
        elif anchor and there.suffix == ".md" and anchor not in anchors(there):
            yield f"{place}: `{target}` names a heading that is not there"


def problems(root: Path) -> list[str]:
    """Return a line for each link of the checkout that leads nowhere."""
    return [problem for page in pages(root) for problem in problems_of(page, root)]


if __name__ == "__main__":
    sys.exit(report(problems(ROOT)))
