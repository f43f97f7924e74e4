"""Check the built site: every link has a target, and no page loads anything from a server."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

LOADED = {
    "audio": "src", "embed": "src", "iframe": "src", "img": "src", "input": "src", "object": "data", "script": "src",
    "source": "src", "track": "src", "video": "src",
}  # fmt: skip
"""Elements with an attribute whose address a browser loads."""
LOADED_LINKS = {
    "stylesheet",
    "icon",
    "preload",
    "prefetch",
    "preconnect",
    "dns-prefetch",
    "modulepreload",
    "manifest",
}
FAR = re.compile(r"(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
CSS_ADDRESS = re.compile(r"url\(\s*['\"]?((?:https?:)?//[^)'\"]+)|@import\s+['\"]((?:https?:)?//[^'\"]+)")


class Reading(HTMLParser):
    """Links, loaded addresses and link targets of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = {"", "top"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses and anchors of one element."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in LOADED and given.get(LOADED[tag]):
            self.loads.append(given[LOADED[tag]])
        if "srcset" in given:
            self.loads += [part.split()[0] for part in given["srcset"].split(",")]
        if tag == "link" and LOADED_LINKS & set(given.get("rel", "").split()):
            self.loads.append(given.get("href", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])


def read(page: Path) -> Reading:
    """Return what ``page`` links to, loads and offers."""
    reading = Reading()
    reading.feed(page.read_text(encoding="utf-8"))
    return reading


def problems(site: Path) -> list[str]:
    """Return a line for each broken link, and for each address that a browser would load."""
    pages = {page.resolve(): read(page) for page in sorted(site.rglob("*.html"))}
    found = [line for page in pages for line in _problems_of(page, pages, site.resolve())]
    for sheet in sorted(site.rglob("*.css")):
        for address in CSS_ADDRESS.finditer(sheet.read_text(encoding="utf-8")):
            found.append(f"{sheet.relative_to(site)}: loads `{address[1] or address[2]}`")
    return found


def _problems_of(page: Path, pages: dict[Path, Reading], site: Path) -> Iterator[str]:
    place = page.relative_to(site)
    reading = pages[page]
    for address in reading.loads:
        if FAR.match(address):
            yield f"{place}: loads `{address}`"
    for address in [*reading.links, *(each for each in reading.loads if not FAR.match(each))]:
        if FAR.match(address) or re.match(r"[a-z]+:", address):
            continue
        path, _, anchor = address.partition("#")
        path = urllib.parse.unquote(path.partition("?")[0])
        base = site if path.startswith("/") else page.parent
        target = (base / path.lstrip("/")).resolve() if path else page
        if target.is_dir():
            target /= "index.html"
        if not target.is_file():
            yield f"{place}: `{address}` leads nowhere"
        elif target in pages and urllib.parse.unquote(anchor) not in pages[target].anchors:
            yield f"{place}: `{address}` names an anchor that is not there"
