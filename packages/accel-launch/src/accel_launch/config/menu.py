"""Asking on a terminal: choices are a menu that arrow keys and numbers move through."""

from __future__ import annotations

import os
import select
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from accel_launch.config.prompts import Asker, PlainAsker

_UP = frozenset({b"\x1b[A", b"\x1bOA", b"k"})
_DOWN = frozenset({b"\x1b[B", b"\x1bOB", b"j"})
_ENTER = frozenset({b"\r", b"\n"})
_CLEAR_LINE = "\x1b[2K"
_ESCAPE = b"\x1b"
# How long after an escape the rest of an arrow key may take; longer, and it was the key Escape.
_REST_OF_KEY_S = 0.05


class MenuAsker(PlainAsker):
    """Asks on the terminal that is both standard input and standard output."""

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        if len(labels) + 2 > shutil.get_terminal_size().lines:  # lines that scroll away cannot be drawn again
            return super().choice(question, labels, default=default)
        with _keys_as_typed(sys.stdin.fileno()):
            self.say(f"{question} (arrow keys or numbers, then Enter)")
            return self._move(labels, default)

    def _move(self, labels: Sequence[str], place: int) -> int:
        self._draw(labels, place)
        typed = ""
        for key in _keys(sys.stdin.fileno()):
            if key in _ENTER:
                break
            typed, place = moved(key, typed, place, len(labels))
            sys.stdout.write(f"\x1b[{len(labels)}A")
            self._draw(labels, place)
        sys.stdout.write(f"\x1b[{len(labels)}A\x1b[J")  # only the answer stays
        self.say(f"  {labels[place]}")
        return place

    def _draw(self, labels: Sequence[str], chosen: int) -> None:
        width = shutil.get_terminal_size().columns - 1  # a line that wraps would be two
        for place, label in enumerate(labels):
            line = f"{'>' if place == chosen else ' '} {place:>2}  {label}"
            sys.stdout.write(f"{_CLEAR_LINE}{line[:width]}\n")
        sys.stdout.flush()


def make_asker(environ: Mapping[str, str]) -> Asker:
    """Return an asker with menus where there is a terminal that can draw them, else one with plain lines."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    has_termios = find_spec("termios") is not None  # Windows has none
    if not (is_terminal and has_termios) or environ.get("TERM", "dumb") == "dumb":
        return PlainAsker()
    return MenuAsker()


def moved(key: bytes, typed: str, place: int, num_labels: int) -> tuple[str, int]:
    """Return the digits typed so far and the place after one more key; what means nothing changes nothing."""
    if key in _UP:
        return "", (place - 1) % num_labels
    if key in _DOWN:
        return "", (place + 1) % num_labels
    if key.isdigit():
        for digits in (typed + key.decode(), key.decode()):
            if int(digits) < num_labels:
                return digits, int(digits)
    return "", place


def _keys(terminal: int) -> Iterator[bytes]:
    """Yield one key after another; an arrow is one key of three bytes. The end of the input is Enter."""
    while True:
        key = os.read(terminal, 1)
        if key == _ESCAPE and select.select([terminal], [], [], _REST_OF_KEY_S)[0]:
            key += os.read(terminal, 1)
            key += os.read(terminal, 1) if key[1:] in (b"[", b"O") else b""
        yield key or b"\n"


@contextmanager
def _keys_as_typed(terminal: int) -> Iterator[None]:
    """Get each key at once and unseen; Ctrl-C still interrupts. What was typed ahead is kept."""
    import termios
    import tty

    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
