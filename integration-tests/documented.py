"""The code on the pages of the documentation: fenced blocks, and the reasons why some of them are not run."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FENCED = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PAGES = [
    *sorted(page for page in DOCS.rglob("*.md") if page.parent.name != "decisions"),
    *sorted(ROOT.glob("packages/*/README.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
]


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: Where it stands.
        line: The number of its first line there.
        language: What its fence says.
        text: What is in it.
        reason: Why it is not run; None if it is.
    """

    page: Path
    line: int
    language: str
    text: str
    reason: str | None

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path, language: str) -> list[Block]:
    """Return the blocks of a page in one language that are to be run."""
    text = page.read_text(encoding="utf-8")
    found = [
        Block(
            page,
            text.count("\n", 0, block.start("text")) + 1,
            block["language"],
            block["text"],
            block["reason"],
        )
        for block in FENCED.finditer(text)
    ]
    return [block for block in found if block.language == language and block.reason is None]


def all_blocks(language: str) -> list[Block]:
    """Return those of every page."""
    return [block for page in PAGES for block in blocks(page, language)]
