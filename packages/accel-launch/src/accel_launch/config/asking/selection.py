"""Choosing how to ask."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from accel_launch.config.asking.plain import PlainAsker
from accel_launch.config.asking.protocol import Asker


def make_asker(environ: Mapping[str, str]) -> Asker:
    """Return an asker with menus where there is a terminal that can draw them, else one with plain lines."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    has_termios = find_spec("termios") is not None  # Windows has none
    if not (is_terminal and has_termios) or environ.get("TERM", "dumb") == "dumb":
        return PlainAsker()
    from accel_launch.config.asking.menu import MenuAsker

    return MenuAsker()
