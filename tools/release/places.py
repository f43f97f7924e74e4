"""The folders of a release."""

from __future__ import annotations

from pathlib import Path

from tools.workspace import ROOT, Package

WORK = ROOT / "build" / "release"
"""Generated files next to ``dist/``, which only has the files for PyPI."""
NOTES = WORK / "notes"
SBOM = WORK / "sbom"
TESTED = WORK / "tested"
AGAIN = WORK / "again"
SIBLINGS = WORK / "siblings"


def sbom_file(package: Package) -> Path:
    """Return where the SBOM of ``package`` is written."""
    return SBOM / f"{package.import_name}-{package.version}.cdx.json"


def notes_file(package: Package) -> Path:
    """Return where the notes of the release are written."""
    return NOTES / f"{package.name}-v{package.version}.md"
