"""The interface that users move over from, name by name: how much of it works."""

import importlib
from pathlib import Path

NAMES = Path(__file__).with_name("interface_names.txt")
RESOLVED = Path(__file__).with_name("interface_resolved.txt")
"""The names that worked when this file was last written; none of them may be lost."""


def resolves(entry: str) -> bool:
    """Whether `module:name` or `module:Class.member` can be reached."""
    module, _, path = entry.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    for name in path.split("."):
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


def test_no_name_of_the_interface_is_lost(capsys):
    entries = NAMES.read_text().split()
    working = {entry for entry in entries if resolves(entry)}
    with capsys.disabled():
        print(f"\n{len(working)} of {len(entries)} names of the interface resolve")
    lost = sorted(set(RESOLVED.read_text().split()) - working)
    assert not lost, f"{len(lost)} names no longer resolve: {', '.join(lost[:10])}"


def test_names_gained_are_written_down():
    gained = [entry for entry in NAMES.read_text().split() if resolves(entry)]
    assert gained == RESOLVED.read_text().split(), (
        "more names resolve than are written down; run `python packages/accel/tests/test_interface.py`"
    )


if __name__ == "__main__":
    RESOLVED.write_text("".join(f"{entry}\n" for entry in NAMES.read_text().split() if resolves(entry)))
