"""Classes of `unittest` tests, and checks within a test."""

from __future__ import annotations

import io
import shutil
import tempfile
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, ClassVar

from accel_state.accelerator_state import AcceleratorState


class TempDirTestCase(unittest.TestCase):
    """Tests that share one temporary folder, ``self.tmpdir``."""

    tmpdir: ClassVar[Path]
    clear_on_setup = True
    """Whether the folder is emptied before each test."""

    @classmethod
    def setUpClass(cls) -> None:
        """Make the folder."""
        super().setUpClass()
        cls.tmpdir = Path(tempfile.mkdtemp())

    @classmethod
    def tearDownClass(cls) -> None:
        """Remove it."""
        shutil.rmtree(cls.tmpdir, ignore_errors=True)
        super().tearDownClass()

    def setUp(self) -> None:
        """Empty it."""
        super().setUp()
        if self.clear_on_setup:
            for path in self.tmpdir.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()


class AccelerateTestCase(unittest.TestCase):
    """Tests that reset the state of the process after each one."""

    def tearDown(self) -> None:
        """Reset the state."""
        super().tearDown()
        AcceleratorState._reset_state(reset_partial_state=True)


class MockingTestCase(unittest.TestCase):
    """Tests with patches that end with each test."""

    def add_mocks(self, mocks: Any) -> None:
        """Start a patch of `unittest.mock`, or several, until the end of the test; called at the end of ``setUp``."""
        for mock in mocks if isinstance(mocks, (list, tuple)) else [mocks]:
            mock.start()
            self.addCleanup(mock.stop)


@contextmanager
def assert_exception(exception_class: type[Exception], msg: str | None = None) -> Iterator[None]:
    """Fail unless the block raises an error of this class, with ``msg`` in its message.

    Raises:
        AssertionError: If it raises none, or one with another message. One of another class goes through.
    """
    try:
        yield
    except exception_class as error:
        if msg is not None and msg not in str(error):
            raise AssertionError(f"Expected `{msg}` in the message, got `{error}`.") from error
        return
    raise AssertionError(f"Expected {exception_class.__name__}, but nothing was raised.")


def capture_call_output(func: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """Call a function and return what it printed."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        func(*args, **kwargs)
    return printed.getvalue()
