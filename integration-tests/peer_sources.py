"""Accelerate's source distribution, whose tests and scripts run on accel: downloaded, checked, unpacked."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

RELEASE = "1.15.0"
SHA256 = "5654f8c5eaa0d4fa68b33e287a97765da6849bf6d51dcac874e73fbbddfb6134"
NAME = f"accelerate-{RELEASE}"
ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "peer_sources"
SCRIPTS = Path("src/accelerate/test_utils/scripts")
TESTS = Path("tests")


def unpacked(sdist: Path | None = None, *, folder: Path = FOLDER) -> Path:
    """Return the folder of Accelerate's sources, with its tests and the scripts that these start.

    Args:
        sdist: The archive, or a folder that it has been unpacked into. Downloaded from the package
            index if `None`.
        folder: Where to download and unpack; what is there already is used.
    """
    if sdist is not None and sdist.is_dir():
        return sdist
    folder.mkdir(parents=True, exist_ok=True)
    sources = folder / NAME
    if sdist is None and sources.is_dir():
        return sources
    archive = downloaded(folder) if sdist is None else sdist
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"`{archive}` is not the archive of Accelerate {RELEASE}: its SHA-256 is {digest}.")
    with tempfile.TemporaryDirectory(dir=folder) as staging, tarfile.open(archive) as opened:
        # Python has the filter since 3.11.4; what is unpacked is known by its digest.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        opened.extractall(staging, **options)
        if not sources.is_dir():
            (Path(staging) / NAME).rename(sources)
    return sources


def downloaded(folder: Path) -> Path:
    """Download the archive into a folder and return its path."""
    archive = folder / f"{NAME}.tar.gz"
    if not archive.is_file():
        words = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        words += ["--no-binary", ":all:", "--no-build-isolation", "--dest", str(folder)]
        subprocess.run([*words, f"accelerate=={RELEASE}"], check=True)
    return archive
