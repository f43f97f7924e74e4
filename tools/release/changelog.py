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
        SetupError: If there is no open section, or nothing stands in it.
    """
    found = OPEN_SECTION.search(text)
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


def notes_of(text: str, version: str) -> str:
    """Return what the changelog says about ``version``.

    Raises:
        SetupError: If it has no section for it.
    """
    found = re.search(rf"^## {re.escape(version)}\b.*\n(?P<body>(?:(?!^## ).*\n?)*)", text, re.MULTILINE)
    if found is None:
        raise SetupError(f"The changelog has no section `## {version}`.")
    return found["body"].strip() + "\n"
