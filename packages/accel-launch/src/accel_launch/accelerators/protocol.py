"""What a vendor of accelerators is, and what was found of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

MACHINE = Path("/")


class Vendor(Protocol):
    """One kind of accelerator."""

    @property
    def name(self) -> str:
        """What it is called here."""
        ...

    @property
    def variable(self) -> str:
        """The variable that chooses among several of them."""
        ...

    @property
    def several(self) -> str:
        """What a config file calls a run on more than one."""
        ...

    def visible(self, environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
        """Return those that a process with this environment would see, by what the variable calls them.

        Args:
            environ: The environment of the process.
            root: Folder that stands for ``/``.
        """
        ...

    def is_usable(self) -> bool:
        """Tell whether the installed torch can work with them."""
        ...


@dataclass(frozen=True, slots=True)
class Accelerators:
    """The accelerators that a process would use: whose, which, and what `Vendor` says of them."""

    vendor: str = ""
    names: tuple[str, ...] = ()
    variable: str = "CUDA_VISIBLE_DEVICES"
    several: str = "MULTI_GPU"
