"""The interface of a file in this folder: one object named ``engine``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tools.setup.environment import Environment


def nothing(environment: Environment) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Engine:
    """An engine or a service that tests run for real.

    Args:
        name: What its tests are marked with: ``@pytest.mark.engine(name)``.
        purpose: The subject of its tests, in a few words for ``--help``.
        tests: The files and folders with its tests, from the root of the checkout.
        environment: The environment of its tests in ``pyproject.toml``: the ordinary one, or one that has its packages.
        debian: The Debian packages that it needs.
        needs_root: Whether its tests need root: they start daemons or make network namespaces.
        variables: What its tests find in the process environment.
        prepare: Makes what no package brings, and returns at once if it is there.
        num_workers: Processes that its tests are distributed over; more than one if they share no service.
        keep_files_together: Whether the tests of a file run in one of these processes, since they share a job of it.
    """

    name: str
    purpose: str
    tests: tuple[str, ...]
    environment: Environment = field(default_factory=Environment)
    debian: tuple[str, ...] = ()
    needs_root: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Environment], None] = nothing
    num_workers: int = 1
    keep_files_together: bool = False
