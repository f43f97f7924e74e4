"""The end of a run: everything is closed, also after something has failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def attempt_all(steps: Iterable[Callable[[], object]]) -> None:
    """Call every step in order, also after one has failed.

    Raises:
        BaseException: The first error; later ones are its notes.
    """
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # noqa: BLE001 (raised below)
            if first is None:
                first = error
            else:
                first.add_note(f"Afterwards: {type(error).__name__}: {error}")
    if first is not None:
        raise first
