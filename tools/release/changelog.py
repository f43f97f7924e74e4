"""The one section of a changelog that a release touches."""

from __future__ import annotations

import re

from tools.setup.failures import SetupError

OPEN_SECTION = re.compile(
    r"^## (?:Unreleased|(?P<version>\d+\.\d+\.\d+) \(unreleased\))[ \t]*$", re.IGNORECASE | re.MULTILINE
)


def close_section(text: str, *, version: str, date: str) -> str:
    """Return ``text`` with its open section dated: ``## Unreleased`` becomes ``## 0.2.0 (2031-02-03)``.

    Raises:
        SetupError: If there is no open section, more than one, or it is empty.
    """
    found = OPEN_SECTION.search(text)
    if found is not None and OPEN_SECTION.search(text, found.end()):
        raise SetupError("The changelog has more than one open section. Merge them, then run this again.")
    if found is None:
        raise SetupError(
            "The changelog has no section `## Unreleased`. Write there what changed, then run this again."
        )
    body = re.split(r"^## ", text[found.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    if not body.strip():
        raise SetupError(
            f"The section `{found[0].strip()}` is empty. Write there what changed, then run this again."
        )
    return text[: found.start()] + f"## {version} ({date})" + text[found.end() :]


def has_open_section(text: str) -> bool:
    """Return True if the changelog has a section without a date."""
    return OPEN_SECTION.search(text) is not None


def is_released(text: str, version: str) -> bool:
    """Return True if ``version`` has a section with a date."""
    return _released_section(text, version) is not None


def notes_of(text: str, version: str) -> str:
    """Return the changelog's text for ``version``.

    Raises:
        SetupError: If it has no section of it with a date, or a section that is still open.
    """
    still_open = OPEN_SECTION.search(text)
    if still_open is not None:
        raise SetupError(
            f"The changelog has the open section `{still_open[0].strip()}`. `python -m tools.release.bump` dates it."
        )
    found = _released_section(text, version)
    if found is None:
        raise SetupError(f"The changelog has no section `## {version} (YYYY-MM-DD)`.")
    return found["body"].strip() + "\n"


def _released_section(text: str, version: str) -> re.Match[str] | None:
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)[ \t]*\n"
    return re.search(heading + r"(?P<body>(?:(?!^## ).*\n?)*)", text, re.MULTILINE)
