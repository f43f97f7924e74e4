"""The code on the pages of the documentation: fenced blocks, and the reasons why some of them are not run."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    *sorted(DOCS.rglob("*.md")),
    *sorted(ROOT.glob("packages/*/*.md")),
    *sorted(ROOT.glob("*.md")),
]
"""Every page that is written by hand; all but those in ``docs/examples`` stand on the site, or on GitHub too."""
LANGUAGES = {
    "bash": "commands; understood by the programs that they name",
    "console": "commands with what they print; run, and compared",
    "diff": "Python before and after a change; both compile",
    "dockerfile": "how an image is made; each line is understood",
    "python": "run from top to bottom, a page at a time",
    "text": "what a program prints; nothing to run",
    "toml": "parsed, and names in it looked up",
    "yaml": "a config file; read as one",
}
"""What a fence may say, and what a test does with such a block."""
FENCE = re.compile(r"(?P<indent>[ >]*)(?P<marks>`{3,}|~{3,})(?P<language>.*)")
MARK = re.compile(r"<!-- (?:not run: (?P<reason>[^>]+)|run by: (?P<run_by>[\w/.-]+)) -->")
"""What may stand above a block: why nothing runs it, or which file of tests does in place of the page's."""


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Where it is.
        line: The number of its first line there.
        language: What its fence says.
        text: What is in it.
        reason: Why it is not run; None if it is.
        run_by: The file of tests that runs it, where those of all pages do not.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    run_by: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


class UnknownBlockError(ValueError):
    """A fence that no test would look at."""


@cache
def fences(page: Path) -> tuple[Block, ...]:
    """Return every fenced block of a page.

    Raises:
        UnknownBlockError: If a fence is indented, names no language that is known, or is never closed.
    """
    return tuple(_fences(page, page.read_text(encoding="utf-8").splitlines()))


def _fences(page: Path, lines: list[str]) -> Iterator[Block]:
    first = 0
    while first < len(lines):
        fence = FENCE.fullmatch(lines[first])
        if fence is None:
            if MARK.fullmatch(lines[first]) and not FENCE.match("".join(lines[first + 1 : first + 2])):
                raise UnknownBlockError(f"{page}:{first + 1}: the mark is above no block.")
            first += 1
            continue
        where = f"{page}:{first + 1}"
        if fence["indent"] or fence["marks"] != "```" or fence["language"] not in LANGUAGES:
            raise UnknownBlockError(
                f"{where}: ```{fence['language']}: write one of {', '.join(LANGUAGES)}, not indented."
            )
        last = next((index for index in range(first + 1, len(lines)) if lines[index] == "```"), None)
        if last is None:
            raise UnknownBlockError(f"{where}: the block is never closed.")
        mark = MARK.fullmatch(lines[first - 1]) if first else None
        text = "".join(f"{line}\n" for line in lines[first + 1 : last])
        yield Block(
            page,
            first + 2,
            fence["language"],
            text,
            *(mark.group("reason", "run_by") if mark else (None, None)),
        )
        first = last + 1


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of a page in one language that the tests of all pages run."""
    return [
        block
        for block in fences(page)
        if block.language == language and block.reason is None and block.run_by is None
    ]


def all_blocks(language: str) -> list[Block]:
    """Return those of every page."""
    return [block for page in PAGES for block in blocks(page, language)]


def excepted_blocks() -> list[Block]:
    """Return the blocks of every page that are not run."""
    return [block for page in PAGES for block in fences(page) if block.reason is not None]


def commands(block: Block) -> Iterator[tuple[int, str]]:
    """Yield each command of a shell block as one line, with the number of its first line."""
    for found in re.finditer(r"(?:.*\\\n)*.+\n", block.text):
        yield block.line + block.text.count("\n", 0, found.start()), found[0].replace("\\\n", " ")


def with_replacements(text: str, replacements: Mapping[str, str]) -> str:
    """Return a text in which words are replaced by others, but no parts of words."""
    for words, replacement in replacements.items():
        text = re.sub(rf"(?<!\w){re.escape(words)}(?!\w)", lambda _, new=replacement: new, text)
    return text
