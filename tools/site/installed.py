"""The copy of the documentation site that a wheel brings, with the licenses of the code that it ships."""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.setup.running import SetupError
from tools.workspace import ROOT

INSTALLED = ROOT / "packages" / "accel-launch" / "src" / "accel_launch" / "site"
"""Where `accel docs` looks for a copy, and from where wheels take it."""
NOT_INSTALLED = ("*.map", "lunr", "search_index.json", "sitemap.xml*")
"""Files that only a server, or a reader of another language, would need."""
SHIPPED = ("mkdocs", "mkdocs_material", "mkdocstrings", "mkdocstrings_python")
"""Distributions whose scripts and styles are part of the site."""
LUNR = Path(__file__).with_name("lunr_license.txt")
"""The license of the search, which Material has inside a separate script."""


def install(site: Path, site_packages: Path, *, into: Path = INSTALLED) -> None:
    """Copy ``site`` to where wheels take it from.

    Args:
        site: The built site.
        site_packages: Folder of the distributions that built it.
        into: The folder to write; its content is deleted first.

    Raises:
        SetupError: If a distribution has no file with its license.
    """
    shutil.rmtree(into, ignore_errors=True)
    shutil.copytree(site, into, ignore=shutil.ignore_patterns(*NOT_INSTALLED))
    licences = into / "licenses"
    licences.mkdir()
    shutil.copy(LUNR, licences / "lunr.txt")
    for name in SHIPPED:
        found = sorted(site_packages.glob(f"{name}-[0-9]*.dist-info/licenses/LICENSE*"))
        if not found:
            raise SetupError(f"`{name}` is installed in {site_packages} without a file with its license.")
        shutil.copy(found[0], licences / f"{name}.txt")
