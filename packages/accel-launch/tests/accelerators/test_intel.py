from __future__ import annotations

import pytest

from accel_launch.accelerators.intel import Intel


@pytest.fixture
def root(machine):
    """A machine with the graphics of its processor, a card of one tile, one of two, and another vendor's."""
    files = {
        "sys/devices/0000:00:02.0/vendor": "0x8086\n",
        "sys/devices/0000:03:00.0/vendor": "0x8086\n",
        "sys/devices/0000:04:00.0/vendor": "0x8086\n",
        "sys/devices/0000:04:00.0/tile0/x": "",
        "sys/devices/0000:04:00.0/tile1/x": "",
        "sys/devices/0000:05:00.0/vendor": "0x10de\n",
    }
    root = machine(files)
    for place, slot in enumerate(("0000:00:02.0", "0000:03:00.0", "0000:04:00.0", "0000:05:00.0")):
        card = root / "sys" / "class" / "drm" / f"card{place}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(root / "sys" / "devices" / slot)
    return root


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (None, ("0", "1", "2")),
        ("", ("0", "1", "2")),
        ("2,0", ("2", "0")),
        ("0.1,0.0", ("0.1", "0.0")),
        ("0,9", ("0",)),
        ("1,1", ("1",)),
    ],
)
def test_the_mask_chooses_among_tiles_of_separate_cards(root, mask, seen):
    assert Intel().visible({} if mask is None else {"ZE_AFFINITY_MASK": mask}, root) == seen
