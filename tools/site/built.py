"""Check the built site: no page loads anything from a server. Building it checks the links."""

from __future__ import annotations

import re
from pathlib import Path

LOADED = re.compile(
    r"""<(?:audio|embed|iframe|img|input|script|source|track|video)\b[^>]*?\ssrc=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|icon|preload|prefetch|preconnect|dns-prefetch|modulepreload|manifest))"""
    r"""[^>]*?\shref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|(?:url\(\s*|@import\s+)['"]?((?:https?:)?//[^)'"]+)""",
    re.IGNORECASE,
)


def problems(site: Path) -> list[str]:
    """Return a line for each address of a server that a browser would load."""
    return [
        f"{file.relative_to(site)}: loads `{''.join(found.groups(default=''))}`"
        for file in sorted(site.rglob("*"))
        if file.suffix in (".html", ".css")
        for found in LOADED.finditer(
            re.sub(r"<code.*?</code>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        )
    ]
