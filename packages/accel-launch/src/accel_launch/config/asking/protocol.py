"""What asks the questions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Asker(Protocol):
    """Asks a person; blocks until there is an answer."""

    def text(self, question: str, *, default: str) -> str:
        """Return the line that was typed, ``default`` if it is empty."""
        ...

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        """Return the place of the label that was chosen."""
        ...

    def say(self, line: str) -> None:
        """Show a line, such as why an answer was not taken."""
        ...
