"""Check the table of devices against the code that drives them; ``--update`` rewrites it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from accel_backends.strategies.selection import STRATEGIES, why_not_on
from accel_state.devices import Vendor, device_backend, known_vendors
from accel_state.errors import NotAvailableError
from tools.checks.tables import if_old, run_check, with_rows
from tools.harness.vendor_modules import VendorModule, vendor_module

PAGE = Path("docs") / "reference" / "devices.md"
_COLUMNS = (
    "device",
    "comes with",
    "`mixed_precision`",
    "strategies",
    "several processes",
    "seeds",
    "free memory",
)
BEGIN = f"| {' | '.join(_COLUMNS)} | compiles with |\n{'|-' * (len(_COLUMNS) + 1)}|\n"
"""The head of the table, which an empty line ends."""

_WITHOUT_STAND_IN = {
    "cpu": ("`torch.default_generator`", "`psutil`"),
    "xla": ("`xla_model.set_rng_state`", "`xla_model.get_memory_info`"),
}
"""Source of seed and figures on devices that no `torch.<name>` drives."""


def with_table(page: str) -> str:
    """Return the page with the table as the code has it now."""
    return with_rows(page, head=BEGIN, rows=_lines(), page=PAGE)


def problems(root: Path) -> list[str]:
    """Return the command that updates the page if it is not current."""
    return if_old(root, PAGE, with_table, what="devices", check="device_table")


def _lines() -> Iterator[str]:
    for vendor in known_vendors():
        seeds, memory = _WITHOUT_STAND_IN.get(vendor.name) or _asked(vendor)
        cells = (
            f"{vendor.label}, `{vendor.name}`",
            "torch" if vendor.plugin is None else f"`{vendor.plugin.module}`",
            _precisions(vendor),
            ", ".join(f"`{name}`" for name in strategies_on(vendor)),
            f"`{vendor.collective_backend}`, `{vendor.distributed_type}`"
            if vendor.collective_backend
            else "no",
            seeds,
            memory,
            f"`{vendor.compiler}`",
        )
        yield f"| {' | '.join(cells)} |\n"


def strategies_on(vendor: Vendor) -> list[str]:
    """Return the names of the strategies that train on a vendor's devices."""
    return [
        name
        for name in sorted(STRATEGIES.names())
        if why_not_on(vendor, STRATEGIES.get(name)().capabilities) is None
    ]


def _precisions(vendor: Vendor) -> str:
    formats = (f"`{name}` ({needs})" if needs else f"`{name}`" for name, needs in vendor.precisions.items())
    return ", ".join(["`no`", *formats])


def _asked(vendor: Vendor) -> tuple[str, str]:
    """Return the functions of the vendor's module that seeding and looking for memory call."""
    with vendor_module(vendor.name) as module:
        backend = device_backend(vendor.name)
        return (
            _calls(module, lambda: backend.seed_all(0)),
            _calls(module, backend.free_and_total_bytes),
        )


def _calls(module: VendorModule, function: Callable[[], object]) -> str:
    del module.calls[:]
    try:
        function()
    except NotAvailableError:
        return "not reported"
    return ", ".join(f"`{name}`" for name in module.calls)


if __name__ == "__main__":
    sys.exit(run_check(PAGE, with_table, problems))
