"""Which page of the site shows which file of the checkout, and links between them."""

from __future__ import annotations

import posixpath
import re

from tools.workspace import ROOT

TOP_LEVEL = {
    "CONTRIBUTING.md": "project/contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "project/security.md",
}
LINK_OR_CODE = re.compile(
    r"(?P<code>^(?P<fence> *(?:```+|~~~+))[^\n]*\n.*?^(?P=fence)\s*$|(?<!`)(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)
MADE = re.compile(r"docs/reference/(?:cli/[\w-]+|settings|packages/[\w-]+)\.md")
"""Pages that are made from code when the site is built."""
OUTSIDE = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


def page_of(path: str) -> str | None:
    """Return the page that shows the file or folder ``path``, or None if there is none.

    Args:
        path: Relative to the root of the checkout; the page is relative to that of the site.
    """
    match path.rstrip("/").split("/"):
        case ["docs", "examples"]:
            return "examples/index.md"
        case ["docs", "examples", name] if posixpath.splitext(name)[1] in ("", ".ipynb", ".py"):
            return f"examples/{posixpath.splitext(name)[0]}.md"
        case ["docs", "decisions"]:
            return "decisions/index.md"
        case ["docs", *rest] if posixpath.splitext(path)[1]:
            return "/".join(rest)
        case ["packages", name] | ["packages", name, "README.md"]:
            return f"reference/packages/{name}.md"
        case ["packages", name, "CHANGELOG.md"]:
            return f"project/changelogs/{name}.md"
        case _:
            return TOP_LEVEL.get(path)


def for_site(text: str, *, source: str, page: str) -> str:
    """Return Markdown with relative links that lead from ``page`` to pages of the site.

    The text of a link to a file without a page stays, the link goes.

    Args:
        text: The Markdown of the file ``source``.
        source: That file, relative to the root of the checkout.
        page: Its page on the site.

    Raises:
        ValueError: If a link leads to a file that is not there.
    """

    def link(found: re.Match[str]) -> str:
        if found["code"] or OUTSIDE.match(found["target"]):
            return found[0]
        path, hash_sign, anchor = found["target"].partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / file).exists() and MADE.fullmatch(file) is None:
            raise ValueError(f"`{source}` links to `{file}`, which is not there.")
        target = page_of(file)
        if target is None:
            return found["text"]
        where = posixpath.relpath(target, posixpath.dirname(page) or ".")
        return f"{found['image']}[{found['text']}]({where}{hash_sign}{anchor})"

    return LINK_OR_CODE.sub(link, text)
