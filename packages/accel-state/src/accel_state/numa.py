"""Which CPU cores are near a device, as Linux tells it under ``/sys``."""

from __future__ import annotations

from pathlib import Path

from accel_state.errors import NotAvailableError

SYS = Path("/sys")


def cores_near(bus_id: str, *, root: Path | None = None) -> set[int] | None:
    """Return the cores of the NUMA node that a device belongs to; None where it belongs to none, or to all alike.

    For a node that has memory but no cores, they are those of the nearest one that has some.

    Args:
        bus_id: Address of the device on the PCI bus, such as ``0000:3b:00.0``.
        root: The folder to read instead of ``/sys``.

    Raises:
        NotAvailableError: If the system does not tell.
    """
    root = SYS if root is None else root
    node = int(_read(root / "bus" / "pci" / "devices" / bus_id / "numa_node"))
    if node < 0:
        return None
    nodes = root / "devices" / "system" / "node"
    distances = [int(distance) for distance in _read(nodes / f"node{node}" / "distance").split()]
    # The numbers of nodes may have gaps; distances are listed without.
    numbers = sorted(_parse(_read(nodes / "online")))
    for _, number in sorted(
        zip(distances, numbers, strict=True), key=lambda pair: (pair[0], pair[1] != node)
    ):
        cores = _parse(_read(nodes / f"node{number}" / "cpulist"))
        if cores:
            return cores
    return None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise NotAvailableError(
            f"The system does not tell which cores are near a device: {error}. Switch `enable_cpu_affinity` off, or "
            "let the container see `/sys`."
        ) from error


def _parse(numbers: str) -> set[int]:
    """Return the numbers in a list such as ``0-3,8``."""
    found: set[int] = set()
    for part in filter(None, numbers.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
