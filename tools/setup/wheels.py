"""Wheels of the packages, and environments that get the packages from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.setup.environment import CONSTRAINTS, HATCH, installed_hatch, must_run, program_in
from tools.setup.running import environment_with, timed
from tools.workspace import ROOT, requirement_name

DIST = ROOT / "dist"


def build(folders: Iterable[Path], into: Path = DIST) -> list[Path]:
    """Build the wheels of the projects in ``folders`` with hatch's builder, and return all wheels of ``into``."""
    installed_hatch()
    with timed("building wheels"):
        for folder in folders:
            words = ["-m", "hatchling", "build", "-t", "wheel", "-d", into.resolve()]
            must_run([program_in(HATCH, "python"), *words], environment_with(), cwd=folder)
    return sorted(into.glob("*.whl"))


def pinned(wheels: Sequence[Path], *, torch: str | None = None, floors: Sequence[str] = ()) -> Path:
    """Write constraints that pin every package to its wheel, and return the file.

    No sibling is looked for on an index, where the name ``accel`` belongs to a stranger.

    Args:
        wheels: The wheels.
        torch: A release of torch in place of the usual one: ``2.9`` stands for any patch of it.
        floors: More pins.
    """
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    if torch is not None:
        lines = [each for each in lines if not each.startswith("torch==")]
        lines.append(f"torch=={torch}" if torch.count(".") == 2 else f"torch=={torch}.*")
    lines += [f"{requirement_name(each.name.partition('-')[0])} @ {each.as_uri()}" for each in wheels]
    file = ROOT / "build" / "constraints" / f"{wheels[0].parent.name}.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join([*lines, *floors]) + "\n", encoding="utf-8")
    return file
