"""How variables of vendors, and ``--gpu_ids``, choose devices: by number or name, up to the first wrong one."""

from __future__ import annotations

import re
from collections.abc import Sequence

_NUMBER = re.compile(r"[+-]?\d+")


def ordinals(number: int) -> tuple[str, ...]:
    """Return the names of ``number`` devices that are known by their place only."""
    return tuple(str(place) for place in range(number))


def chosen(selection: str | None, present: Sequence[str], uuids: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the places in ``present`` that ``selection`` names, in its order.

    As with CUDA, the list ends before the first entry that names no device, and one that names a device twice
    names none at all.

    Args:
        selection: What the variable says; None chooses all.
        present: The devices, by what numbers call them.
        uuids: Their unique names, of which the first letters are enough; empty if nobody knows them.
    """
    if selection is None:
        return tuple(range(len(present)))
    places: list[int] = []
    for entry in (part.strip() for part in selection.split(",")):
        place = _place(entry, present, uuids)
        if place is None:
            break
        if place in places:
            return ()
        places.append(place)
    return tuple(places)


def _place(entry: str, present: Sequence[str], uuids: Sequence[str]) -> int | None:
    number = _NUMBER.match(entry)  # what follows the digits is ignored, as `strtoul` does
    if number is not None:
        name = str(int(number[0]))
        return present.index(name) if name in present else None
    alike = [place for place, uuid in enumerate(uuids) if entry and uuid.startswith(entry)]
    return alike[0] if len(alike) == 1 else None


def asked_for(selection: str, present: tuple[str, ...]) -> tuple[str, ...]:
    """Return the entries of ``--gpu_ids`` up to the first that cannot be among ``present``.

    Numbers are compared. Names (``GPU-…``, ``MIG-…``, or with a number in them) are for the driver to know.
    """
    found: list[str] = []
    for entry in (part.strip() for part in selection.split(",")):
        is_known = bool(present) if _is_name(entry) else entry in present
        if not is_known:
            break
        found.append(entry)
    return tuple(found)


def _is_name(entry: str) -> bool:
    if entry.lstrip("-").isdigit():
        return False
    return entry.startswith(("GPU-", "MIG-")) or any(letter.isdigit() for letter in entry)
