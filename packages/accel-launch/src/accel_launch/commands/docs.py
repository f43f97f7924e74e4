"""Open the documentation in a browser, or search it."""

from __future__ import annotations

import argparse
import urllib.parse
import webbrowser
from importlib.metadata import metadata
from pathlib import Path

from accel_launch.messages import show
from accel_state.errors import NotAvailableError

SITE = Path(__file__).parents[1] / "site"
"""The copy that a wheel may bring."""


class DocsCommand:
    """``accel docs``."""

    help = "Open the documentation in a browser, or search it"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("words", nargs="*", metavar="WORD", help="what to search for")
        parser.add_argument("--print", action="store_true", help="print the address, and open nothing")

    def run(self, arguments: argparse.Namespace) -> int:
        address = documentation_address(arguments.words)
        show(address)
        if not arguments.print:
            webbrowser.open(address)
        return 0


command = DocsCommand()


def documentation_address(words: list[str], *, site: Path = SITE) -> str:
    """Return the address of the documentation, showing what a search for ``words`` finds.

    Raises:
        NotAvailableError: If neither a copy is installed nor the package's metadata names a place.
    """
    page = site / "index.html"
    address = page.as_uri() if page.is_file() else _published_address()
    if address is None:
        raise NotAvailableError(
            "No copy of the documentation is installed, and this release names no web page. In a checkout, "
            "`python tools/dev.py docs --install` builds it for this command."
        )
    return f"{address}?{urllib.parse.urlencode({'q': ' '.join(words)})}" if words else address


def _published_address() -> str | None:
    """Return the web page that the metadata of this package calls its documentation."""
    for entry in metadata("accel-launch").get_all("Project-URL") or ():
        label, _, address = entry.partition(",")
        if label.strip().lower() == "documentation":
            return str(address.strip())
    return None
