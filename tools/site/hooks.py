"""Hooks of mkdocs.

They add the pages generated from code, complete the navigation, and write the Markdown of each page next to it, which
``llms.txt`` lists for programs that read (https://llmstxt.org).
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tools.site.commands import command_pages
from tools.site.gallery import gallery_pages, subjects_of
from tools.site.packages import package_pages
from tools.site.places import TOP_LEVEL, for_site
from tools.site.settings import reference_page
from tools.workspace import ROOT, read_packages

DOCS = ROOT / "docs"
BOOSTS = {
    "start/*": 2,
    "train/*": 2,
    "scale/*": 2,
    "launch/*": 2,
    "infer/*": 2,
    "help/*": 2,
    "extend/*": 2,
    "decisions/*": 0.5,
    "project/*": 0.5,
}
"""Factors of search scores."""


def generated_pages(nav: Any) -> dict[str, str]:
    """Return the Markdown of every page that is not a file of ``docs``, by its place on the site.

    Args:
        nav: The navigation of ``mkdocs.yml``, whose order the gallery follows.
    """
    packages = read_packages()
    pages = dict(package_pages(packages))
    pages |= dict(command_pages(packages))
    pages["reference/settings.md"] = reference_page()
    pages |= dict(gallery_pages(DOCS, subjects_of(nav)))
    for source, page in TOP_LEVEL.items():
        if page != "index.md":
            text = (ROOT / source).read_text(encoding="utf-8")
            pages[page] = for_site(text, source=source, page=page)
    pages["decisions/index.md"] = _decisions()
    return pages


def completed(nav: Any, pages: list[str]) -> Any:
    """Return a navigation with patterns replaced by the pages they match.

    Entries without a page are skipped, so that it can be added later; mkdocs warns of pages that are not listed.
    """
    if isinstance(nav, list):
        return [done for entry in nav for done in _entries(entry, pages)]
    return nav


def _entries(entry: Any, pages: list[str]) -> Iterator[Any]:
    if isinstance(entry, str):
        yield from (page for page in fnmatch.filter(pages, entry) if not _is_overview_of(page, entry))
    else:
        ((title, inside),) = entry.items()
        if isinstance(inside, list):
            done = completed(inside, pages)
            if done:
                yield {title: done}
        elif inside in pages:
            yield entry


def _is_overview_of(page: str, pattern: str) -> bool:
    return "*" in pattern and posixpath.basename(page) == "index.md"


def _decisions() -> str:
    lines = [
        "# Decisions\n",
        "The reasons for accel's design: a page for each decision, with the rejected alternatives.\n",
    ]
    for file in sorted((DOCS / "decisions").glob("[0-9]*.md")):
        title = file.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({file.name})")
    return "\n".join(lines) + "\n"


def llms_text(config: Mapping[str, Any], sections: Iterator[Any], markdown: Mapping[str, str]) -> str:
    """Return ``llms.txt``: the site in a line, and for each section of the navigation its pages with Markdown.

    Args:
        config: Of mkdocs; it has the name and the description.
        sections: The top of mkdocs' navigation.
        markdown: The Markdown of pages by their path.
    """
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}"]
    for section in sections:
        lines += ["", f"## {section.title}", ""]
        lines += [
            f"- [{page.title}]({page.file.src_uri})"
            for page in _pages_in(section)
            if page.file.src_uri in markdown
        ]
    return "\n".join(lines) + "\n"


def _pages_in(item: Any) -> Iterator[Any]:
    if item.is_page:
        yield item
    for child in item.children or ():
        yield from _pages_in(child)


_pages: dict[str, str] = {}
_markdown: dict[str, str] = {}
_sections: list[Any] = []


def on_config(config: Any) -> Any:
    """Make the pages, which the navigation names."""
    _pages.clear()
    _markdown.clear()
    _pages.update(generated_pages(config["nav"]))
    written = [file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")]
    pages = sorted({*written, *_pages}, key=lambda page: page.removesuffix(".md"))
    config["nav"] = completed(config["nav"], pages)
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
    boost = next((boost for pattern, boost in BOOSTS.items() if fnmatch.fnmatch(place, pattern)), 1)
    page.meta["search"] = {"boost": boost}
    if place not in _pages:
        markdown = for_site(markdown, source=posixpath.join("docs", place), page=place)
    if "\n::: " not in markdown:  # else most of it comes from docstrings
        _markdown[place] = markdown
    return markdown


def on_nav(nav: Any, config: Mapping[str, Any], files: Any) -> Any:
    """Keep the sections for ``llms.txt``; titles of pages are known at the end."""
    _sections[:] = nav.items
    return nav


def on_post_build(config: Mapping[str, Any]) -> None:
    """Write the Markdown of each page beside it, and ``llms.txt``."""
    site = Path(config["site_dir"])
    for place, text in _markdown.items():
        (site / place).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text(llms_text(config, iter(_sections), _markdown), encoding="utf-8")


def on_post_page(output: str, page: Any, config: Mapping[str, Any]) -> str:
    """Name the dialog of the search, which the theme leaves without a name for screen readers."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
