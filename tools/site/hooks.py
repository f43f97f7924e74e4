"""Hooks of mkdocs: they add the pages generated from code."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any

from tools.site.gallery import gallery_pages
from tools.site.packages import package_pages
from tools.site.places import TOP_LEVEL, for_site
from tools.site.reference import command_pages, settings_page
from tools.workspace import ROOT, read_packages

DOCS = ROOT / "docs"
BOOSTS = {"decisions": 0.5, "examples": 1, "project": 0.5, "reference": 1}
"""Factors of search scores, by folder; guides have 2."""


def generated_pages(nav: Any) -> dict[str, str]:
    """Return the Markdown of every page that is not a file of ``docs``, by its place on the site.

    Args:
        nav: The navigation of ``mkdocs.yml``, whose order the gallery follows.
    """
    packages = read_packages()
    pages = dict(package_pages(packages))
    pages |= dict(command_pages(packages))
    pages["reference/settings.md"] = settings_page()
    pages |= dict(gallery_pages(nav))
    for source, page in TOP_LEVEL.items():
        if page != "index.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            pages[page] = for_site(text, source=source, page=page)
    pages["decisions/index.md"] = _decisions()
    return pages


def _decisions() -> str:
    lines = [
        "# Decisions\n",
        "The reasons for accel's design: a page for each decision, with the rejected alternatives.\n",
    ]
    for file in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"


_pages: dict[str, str] = {}


def on_config(config: Any) -> Any:
    """Make the pages, which the navigation names."""
    _pages.clear()
    _pages.update(generated_pages(config["nav"]))
    config["theme"].static_templates.discard("404.html")  # for servers: its links lead nowhere in a folder
    return config


def on_files(files: Any, config: Any) -> Any:
    """Hand the pages to mkdocs."""
    from mkdocs.structure.files import File

    for page, text in _pages.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Mapping[str, Any], files: Any) -> str:
    """Make links of pages in ``docs`` point to pages of the site, and weight the page in the search."""
    place = page.file.src_uri
    page.meta["search"] = {"boost": BOOSTS.get(place.partition("/")[0], 2)}
    return (
        markdown if place in _pages else for_site(markdown, source=posixpath.join("docs", place), page=place)
    )


def on_post_page(output: str, page: Any, config: Mapping[str, Any]) -> str:
    """Name the dialog of the search, which the theme leaves without a name for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
