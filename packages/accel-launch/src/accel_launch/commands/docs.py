"""Open the documentation in a browser, or search it."""

from __future__ import annotations

import argparse
import urllib.parse
import webbrowser
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from accel_launch.installation import PACKAGES
from accel_launch.messages import inform, show
from accel_state.errors import NotAvailableError

SITE = Path(__file__).parents[1] / "site"
"""The copy that a wheel may bring."""
BUILD = "In a checkout, `python tools/dev.py docs --install` builds it for this command."


class DocsCommand:
    """``accel docs``."""

    help = "Open the documentation in a browser, or search it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs="*", metavar="WORD", help="what to search for")
        parser.add_argument("--print", action="store_true", help="print the address, and open nothing")

    def run(self, arguments: argparse.Namespace) -> int:
        address = documentation_address(arguments.words)
        if address is None:
            show(from_readmes(arguments.words))
            inform(f"No copy of the documentation is installed: this is from README files. {BUILD}")
            return 0
        show(address)
        if not arguments.print:
            webbrowser.open(address)
        return 0


command = DocsCommand()


def documentation_address(words: list[str], *, site: Path = SITE) -> str | None:
    """Return the address of the documentation, showing the results of a search for ``words``.

    None if neither a copy is installed nor the package's metadata names a place.
    """
    page = site / "index.html"
    address = page.as_uri() if page.is_file() else _published_address()
    return f"{address}?{urllib.parse.urlencode({'q': ' '.join(words)})}" if address and words else address


def from_readmes(words: list[str]) -> str:
    """Return the sections of the installed packages' READMEs that contain all ``words``; without words, one README.

    Raises:
        NotAvailableError: If no section contains them.
    """
    readmes = {name: text for name in PACKAGES if (text := _readme(name))}
    if not words:
        return next(iter(readmes.values()))
    sections = [
        f"{name}: {section.strip()}"
        for name, text in readmes.items()
        for section in text.split("\n## ")
        if all(word.lower() in section.lower() for word in words)
    ]
    if not sections:
        raise NotAvailableError(
            f"No copy of the documentation is installed, and no README of {', '.join(readmes)} contains "
            f"`{' '.join(words)}`. {BUILD}"
        )
    return "\n\n".join(sections)


def _readme(package: str) -> str | None:
    try:
        return str(metadata(package).get_payload())  # type: ignore[attr-defined]
    except PackageNotFoundError:
        return None


def _published_address() -> str | None:
    """Return the web page that the metadata of this package calls its documentation."""
    for entry in metadata("accel-launch").get_all("Project-URL") or ():
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return str(address.strip())
    return None
